"""Tasks by name: the embedded one, the gym suite, and DOPE's."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING

from vlbm.errors import InputError
from vlbm.progress import Progress, as_progress, silent

if TYPE_CHECKING:
    from vlbm.suites.base import Entry, Task

EMBEDDED = "pendulum"
DOPE = "dope/"


def task_names() -> tuple[str, ...]:
    """Every task there is."""
    from vlbm.suites import dope, gym

    return (EMBEDDED, *gym.list_names(), *dope.list_names())


def find_entry(name: str) -> Entry:
    """Metadata of a task, without loading it."""
    from vlbm.suites import dope, gym, pendulum

    check_name(name)
    if name == EMBEDDED:
        return pendulum.make_entry()
    return dope.make_entry(name) if name.startswith(DOPE) else gym.make_entry(name)


def load_task(
    name: str,
    *,
    steps: int | None = None,
    seed: int = 0,
    data: str | Path | None = None,
    policies: str | Path | None = None,
    download: bool = False,
    like_d4rl: bool = False,
    progress: Progress | bool = silent,
) -> Task:
    """A task with its data and policies; gym data are simulated on first use.

    `steps` and `seed` are for data that are made here; `data`, `policies` and `download` say where
    DOPE's files come from, and `like_d4rl` has its data simulated instead.

    Args:
        name: As `vlbm suites` lists it.
        steps: How many steps are simulated.
        seed: Of the simulation.
        data: For dope/ tasks: D4RL's file, a folder of them, or `minari:ID`.
        policies: For dope/ tasks: where DOPE's policies are.
        download: For dope/ tasks: whether missing files may be fetched.
        like_d4rl: For dope/ tasks: simulate data like D4RL's.
        progress: Who reports progress.
    """
    from vlbm.suites import dope, gym, pendulum

    progress = as_progress(progress)
    check_name(name)
    if not name.startswith(DOPE) and (data is not None or policies is not None or download or like_d4rl):
        raise InputError(f"{name}: only dope/ tasks have files to be named, fetched or imitated")
    if like_d4rl:
        return dope.load_regenerated_task(
            name, steps=steps or gym.STEPS, seed=seed, policies=policies, download=download, progress=progress
        )
    if name.startswith(DOPE):
        return dope.load_task(name, data=data, policies=policies, download=download, progress=progress)
    if name == EMBEDDED:
        return pendulum.load_pendulum()
    return gym.load_task(name, steps=steps or gym.STEPS, seed=seed, progress=progress)


def true_returns(name: str) -> dict[str, dict[str, float]]:
    """True values of the policies of a task: one column for each kind of return."""
    from vlbm.suites import dope, gym

    check_name(name)
    if name.startswith(DOPE):
        return dope.true_returns(name)
    environment = name.partition("-")[0]
    return {
        f"{kind}, {actions} actions": gym.read_truth(environment, actions=actions, kind=kind)
        for kind in ("discounted", "undiscounted")
        for actions in ("mean", "sampled")
    }


def check_name(name: str) -> None:
    names = task_names()
    if name not in names:
        near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
        hint = f"did you mean {', '.join(near)}?" if near else "`vlbm suites` lists them"
        raise InputError(f"unknown task '{name}'; {hint}")
