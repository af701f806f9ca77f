"""vlbm settings."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from vlbm.cli.common import make_console


def settings(
    method: Annotated[str, typer.Argument(help="Whose settings; `vlbm methods` lists them.")] = "vlbm",
) -> None:
    """List what --set can change in a method, with the values of every preset."""
    from rich import box
    from rich.table import Table

    from vlbm.estimators.base import flatten_settings
    from vlbm.estimators.registry import make_estimator, presets_of

    values = {name: flatten_settings(asdict(make_estimator(method, name))) for name in presets_of(method)}
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("setting", style="bold")
    for name in values:
        table.add_column(name, justify="right")
    for setting in values["default"]:
        row = [_format_setting(preset[setting]) for preset in values.values()]
        differs = any(value != row[0] for value in row)
        table.add_row(setting, *row, style=None if differs or len(row) == 1 else "dim")
    make_console().print(table)


def _format_setting(value: Any) -> str:
    """A value as --set takes it."""
    if isinstance(value, list):
        return ",".join(map(str, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value).lower()
