"""vlbm data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vlbm.cli.common import (
    Column,
    Data,
    NActions,
    Quiet,
    Seed,
    check_outputs,
    make_console,
    make_progress,
    parse_columns,
)
from vlbm.errors import InputError

data = typer.Typer(
    no_args_is_help=True, help="Make the data sets of the suites, and pack those that are larger than memory."
)


@data.command("make")
def make(
    tasks: Annotated[
        list[str],
        typer.Argument(help="Tasks, such as hopper-medium; 'gym' stands for every task of that suite."),
    ],
    steps: Annotated[int, typer.Option(help="How many logged steps, at least.")] = 200_000,
    seed: Seed = 0,
    output: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write the one data set here (.npz); - is standard output."),
    ] = None,
    like_d4rl: Annotated[
        bool,
        typer.Option(
            "--like-d4rl", help="For dope/ tasks: simulate a look-alike; tables call it 'regenerated'."
        ),
    ] = False,
    policies: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where DOPE's policies are, for --like-d4rl.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Simulate data sets and keep them; a second time they are there at once.

    Example: `vlbm data make hopper-medium halfcheetah-medium-expert`
    """
    from vlbm.data.readers.npz import save_npz
    from vlbm.suites import check_name, gym
    from vlbm.suites.cache import checksum, data_path

    names = [name for task in tasks for name in (gym.list_names() if task == "gym" else (task,))]
    for name in names:
        check_name(name)
    if output is not None and len(names) != 1:
        raise InputError(f"--output {output}: takes one data set, not {len(names)}")
    check_outputs(output)
    if steps < 1:
        raise InputError(f"--steps {steps}: must be at least 1")
    gym.check_simulator()
    console, progress = make_console(output), make_progress(quiet)
    for name in names:
        if name.startswith("dope/"):
            from vlbm.suites import dope

            if not like_d4rl:
                raise InputError(
                    f"{name}: the published data cannot be made; add --like-d4rl for a look-alike, or see "
                    "docs/appendix/dope.md for where to get them"
                )
            episodes = dope.load_regenerated(
                name, policies=policies, steps=steps, seed=seed, progress=progress.with_title(name)
            )
        elif name in gym.list_names():
            episodes = gym.load_data(name, steps=steps, seed=seed, progress=progress.with_title(name))
        else:
            raise InputError(f"{name}: comes with the package, there is nothing to make")
        path = data_path(name, steps=steps, seed=seed)
        returns = episodes.returns()
        label = f"{name} (regenerated)" if like_d4rl and name.startswith("dope/") else name
        console.print(
            f"[bold]{label}[/]: {episodes.count:,} episodes, {episodes.steps:,} steps, mean return "
            f"{returns.mean():,.1f} ± {returns.std():,.1f}",
            highlight=False,
            soft_wrap=True,
        )
        console.print(f"  {path}\n  sha256 {checksum(path)}", style="dim", highlight=False, soft_wrap=True)
        if output is not None:
            save_npz(episodes, output)


@data.command("pack")
def pack(
    sources: Data,
    directory: Annotated[Path, typer.Argument(metavar="DIRECTORY", help="The folder to make.")],
    column: Column = [],  # noqa: B006
    n_actions: NActions = None,
) -> None:
    """Write DATA as a folder of plain arrays, to train from without reading them into memory.

    The folder is then given wherever DATA is. HDF5 and NPZ files may themselves be larger than memory.
    """
    from vlbm.data.readers import pack as pack_source

    episodes = pack_source(sources, directory, n_actions=n_actions, **parse_columns(column))
    make_console().print(
        f"{directory}: {episodes.count:,} episodes, {episodes.steps:,} steps", highlight=False, soft_wrap=True
    )
