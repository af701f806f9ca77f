"""vlbm report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vlbm.cli.common import check_outputs, make_console

if TYPE_CHECKING:
    from vlbm.experiments.comparison import Comparison


def report(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="What --save kept.")],
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Where the page goes; - is standard output. Default: DIR/report.html."
        ),
    ] = None,
) -> None:
    """Make the page of a saved run again; it needs neither data nor policies.

    Example: `vlbm evaluate logs.parquet candidates/*.onnx --save run && vlbm report run`
    """
    target = directory / "report.html" if output is None else output
    check_outputs(target)
    make_page(directory, lambda run: run.report(target))
    make_console(target).print(f"The page: {target}", highlight=False)


def make_page(directory: Path, make: Callable[[Comparison], object]) -> None:
    """Load a run and make its page, or say that it is damaged."""
    from vlbm.report.saved import load_run
    from vlbm.schema import refuse_damage

    run = load_run(directory)
    # Numbers of the right types can still be nonsense that no page is made of.
    with refuse_damage(directory / "evidence", "run evaluate or compare with --save again"):
        make(run)
