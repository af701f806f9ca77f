"""vlbm report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vlbm.cli.common import check_writable, make_console


def report(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="What --save kept.")],
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where the page goes. Default: DIR/report.html.")
    ] = None,
) -> None:
    """Make the page of a saved run again; it needs neither data nor policies.

    Example: `vlbm evaluate logs.parquet candidates/*.onnx --save run && vlbm report run`
    """
    from vlbm.report.saved import load_run

    target = directory / "report.html" if output is None else output
    check_writable(target)
    load_run(directory).report(target)
    make_console().print(f"The page: {target}", highlight=False)
