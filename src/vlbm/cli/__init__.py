"""The command line: one file for every command."""

from __future__ import annotations

import re
import sys
import warnings
from typing import Annotated

import typer

from vlbm.cli.benchmark import benchmark
from vlbm.cli.common import command_arguments
from vlbm.cli.compare import compare
from vlbm.cli.data import data
from vlbm.cli.demo import demo
from vlbm.cli.evaluate import evaluate
from vlbm.cli.fit import fit
from vlbm.cli.inspect import inspect
from vlbm.cli.methods import methods
from vlbm.cli.report import report
from vlbm.cli.settings import settings
from vlbm.cli.suites import suites
from vlbm.cli.wording import name_options
from vlbm.cores import use_cores
from vlbm.errors import InputError, OutputError, TrainingDivergedError
from vlbm.version import VERSION
from vlbm.writing import NO_ROOM

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="How good is each policy, how sure is that, and when should it not be trusted? "
    "Answers from logged episodes, without running any policy.",
)
for command in (evaluate, compare, report, fit, inspect, methods, settings, demo):
    app.command()(command)
app.add_typer(suites, name="suites")
app.add_typer(data, name="data")
app.add_typer(benchmark, name="benchmark")


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    if version:
        typer.echo(f"vlbm {VERSION}")
        raise typer.Exit


def main(arguments: list[str] | None = None) -> None:
    """Run a command; user errors are one line on standard error and exit code 2."""
    given = sys.argv[1:] if arguments is None else arguments
    command_arguments.set(tuple(given))
    warnings.showwarning = _show_warning  # type: ignore[assignment]
    try:
        if "jax" not in sys.modules:  # otherwise the calling program has set up JAX's devices
            use_cores()
        app(args=_expand_settings(given), prog_name="vlbm")
    except (InputError, OutputError) as error:
        _fail(name_options(str(error)), 2)
    except TrainingDivergedError as error:
        _fail(name_options(str(error)), 3)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        _fail(f"standard output, or a temporary file, cannot be written ({error.strerror})", 2)


def _show_warning(message: Warning | str, category: type[Warning], *_: object) -> None:
    """Show a UserWarning as a note, without its line of code."""
    if category is UserWarning:
        _say(f"note: {message}", typer.colors.YELLOW)


def _fail(message: str, code: int) -> None:
    _say(f"error: {message}", typer.colors.RED)
    raise SystemExit(code)


def _say(text: str, colour: str) -> None:
    from vlbm.terminal import show_controls

    typer.secho(show_controls(text), fg=colour, err=True)


def _expand_settings(arguments: list[str]) -> list[str]:
    """`--set a=1 b=2` as `--set a=1 --set b=2`, and so of `--grid`."""
    spread: list[str] = []
    option = None
    for argument in arguments:
        assignment = re.match(r"[a-z_.-]+=", argument) is not None
        if option is not None and assignment and spread[-1] != option:
            spread.append(option)
        spread.append(argument)
        option = argument if argument in ("--set", "--grid") else option if assignment else None
    return spread
