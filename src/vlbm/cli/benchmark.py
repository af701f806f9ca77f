"""vlbm benchmark."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vlbm.cli.benchmark_run import run
from vlbm.cli.common import Quiet, make_console, make_progress
from vlbm.errors import InputError

benchmark = typer.Typer(
    no_args_is_help=True, help="Many methods on many tasks: their results as tables, figures and a page."
)


@benchmark.callback()
def _group() -> None:
    """Commands for whole benchmarks."""


benchmark.command("run")(run)


@benchmark.command("report")
def report(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="The benchmark's directory; its results are in DIR/rows.")
    ],
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where everything goes. Default: DIR/report.")
    ] = None,
    formats: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,...",
            help="Which files: md, tex, csv for tables, png, svg, pdf for figures. Default: all. Without a "
            "format for figures none are drawn, and the page has none.",
        ),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Make tables, figures and one page from the results of a benchmark, finished or not.

    It writes **tables/** (means over all tasks; the paper's Tables 1 to 6, with its published numbers
    beside ours where the task is the same), **figures/** (like the paper's Figures 3 to 13; needs the extra
    `report`) and **index.html**, one self-contained page of all of it, with versions, seeds, seconds, memory
    and failures.

    In tables ± is the standard deviation over seeds, the best of ours is bold, blank cells were not run and
    failed ones have a footnote. Regret@1 is shown as DOPE and the paper have it (a share of the best return)
    and as a share of the range of returns, which means something for negative returns too.

    Example: `vlbm benchmark report results --formats md,png`
    """
    from vlbm.report.benchmark_files import FORMATS, write_benchmark
    from vlbm.report.benchmarks import print_overview

    names = FORMATS if formats is None else tuple(filter(None, map(str.strip, formats.split(","))))
    if not names:
        raise InputError(f"--formats: none were given; choose of {', '.join(FORMATS)}")
    target = directory / "report" if output is None else output
    if target.is_file():
        raise InputError(f"{target}: is a file; give the name of a directory")
    overviews = write_benchmark(directory, target, formats=names, progress=make_progress(quiet))
    console = make_console()
    for overview in overviews:
        print_overview(overview, console)
    console.print(f"The page: {target / 'index.html'}", highlight=False, soft_wrap=True)
