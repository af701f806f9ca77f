"""vlbm methods."""

from __future__ import annotations

from vlbm.cli.common import make_console


def methods() -> None:
    """List the estimators that --method and --methods know."""
    from rich import box
    from rich.table import Table

    from vlbm.estimators.registry import METHODS

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("method", style="bold", no_wrap=True)
    table.add_column("what it is")
    for name, method in METHODS.items():
        table.add_row(name, method.about)
    make_console().print(table)
