"""vlbm suites."""

from __future__ import annotations

from typing import Annotated

import typer

from vlbm.cli.common import make_console

suites = typer.Typer(help="Tasks with known answers: what there is, how large, what is on this machine.")


@suites.callback(invoke_without_command=True)
def list_tasks(context: typer.Context) -> None:
    """List every task: logged data, target policies and their true returns."""
    if context.invoked_subcommand is not None:
        return
    from rich import box
    from rich.table import Table

    from vlbm.suites import find_entry, task_names

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    # Narrow enough for 80 characters; `show` prints the rest.
    table.add_column("task", no_wrap=True)
    for name in ("steps", "obs", "act", "policies"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("here", no_wrap=True)
    for name in task_names():
        entry = find_entry(name)
        numbers = (entry.steps, entry.observation_size, entry.action_size, entry.policies)
        here = "yes" if entry.available else "make" if entry.suite == "gym" else "get"
        table.add_row(name, *(f"{number:,}" for number in numbers), here)
    console = make_console()
    console.print(table)
    console.print(
        "here: yes, on this machine; make, `vlbm data make TASK` simulates it in a minute or two; "
        "get, the files must be fetched (docs/appendix/dope.md)",
        style="dim",
        highlight=False,
    )


@suites.command("show")
def show(task: Annotated[str, typer.Argument(help="A task's name, such as hopper-medium.")]) -> None:
    """Show one task: its data, its policies and what these are truly worth."""
    from rich import box
    from rich.table import Table

    from vlbm.suites import find_entry, true_returns

    entry = find_entry(task)
    console = make_console()
    console.print(f"[bold]{task}[/] ({entry.suite}): {entry.environment}, {entry.about}", highlight=False)
    console.print(
        f"{entry.steps:,} logged steps, {entry.observation_size} observations, {entry.action_size} actions; "
        + ("on this machine" if entry.available else "not on this machine yet"),
        highlight=False,
    )
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("policy")
    returns = true_returns(task)
    for kind in returns:
        table.add_column(kind, justify="right")
    for policy in next(iter(returns.values())):
        table.add_row(policy, *(f"{column[policy]:,.1f}" for column in returns.values()))
    console.print(table)
