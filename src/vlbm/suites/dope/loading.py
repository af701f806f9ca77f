"""load_task(): logged episodes, target policies and true returns of one of DOPE's tasks."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from vlbm.data.episodes import Episodes
from vlbm.data.readers import load
from vlbm.data.readers.minari import data_directory
from vlbm.errors import InputError
from vlbm.progress import Progress, silent
from vlbm.suites.base import Entry, Task
from vlbm.suites.dope.catalogue import Kind, Problem, find_problem
from vlbm.suites.dope.paths import SearchPath, make_search_path
from vlbm.suites.dope.targets import load_targets

SIGNATURE = b"\x89HDF\r\n\x1a\n"
REGENERATED = "regenerated"  # how a note of data begins that only look like the published ones
ABOUT = {
    "random": "logged by an untrained policy",
    "medium": "logged by a policy trained to about a third of the expert's return",
    "medium-replay": "all that the medium policy saw in training",
    "medium-expert": "medium and expert, half each",
    "expert": "logged by a policy trained to the end",
    "human": "25 demonstrations by people",
    "cloned": "half demonstrations by people, half by a policy that imitates them",
}
PathLike = str | os.PathLike[str]


def make_entry(name: str) -> Entry:
    """Metadata of a task, without loading it."""
    facts = find_problem(name)
    search_path = make_search_path()
    return Entry(
        name=facts.name,
        suite="dope",
        environment=facts.simulator or f"{facts.environment}-v1",
        dataset=facts.dataset,
        steps=facts.steps,
        observation_size=facts.observations,
        action_size=facts.actions,
        policies=len(facts.policies),
        about=ABOUT[facts.dataset],
        available=search_path.has_all([facts.data, *facts.policies.values()]),
    )


def true_returns(name: str) -> dict[str, dict[str, float]]:
    """Every kind of true return that is published, one column each."""
    facts = find_problem(name)
    kinds: tuple[Kind, ...] = ("discounted", "undiscounted") if facts.family == "gym" else ("undiscounted",)
    truths = [facts.truth(kind) for kind in kinds]
    words = {"mean": "mean actions", "sample": "sampled actions"}
    return {f"{truth.kind}, {words[truth.actions]}": dict(truth.values) for truth in truths}


def load_task(
    name: str,
    *,
    data: PathLike | None = None,
    policies: PathLike | None = None,
    download: bool = False,
    truth: Kind | None = None,
    progress: Progress = silent,
) -> Task:
    """A task from files: what the caller names, else the directory VLBM_DOPE, else earlier downloads.

    `data` is D4RL's file, a directory with such files, or a Minari data set; `policies` a directory.
    `download` fetches what is missing into the user's cache. `truth` chooses the kind of true returns:
    'discounted' (0.995, mean actions; the default for the Gym tasks) or 'undiscounted' (sampled
    actions; all there is for Adroit).
    """
    facts = find_problem(name)
    directory = data if data is not None and _is_directory_of_files(data) else None
    if data is None or directory is not None:
        search_path = make_search_path(directory)
        path = search_path.get(facts.data, download=download, readable=_check_hdf5, progress=progress)
        episodes = load(path)
    else:
        path = Path(data).expanduser()
        episodes = load(path if path.exists() else data, download=download)
    _check_sizes(episodes, facts, path)
    search_path = make_search_path(policies) if policies is not None else make_search_path(directory)
    return _assemble_task(facts, episodes, search_path, truth=truth, download=download, progress=progress)


def make_task(
    name: str,
    episodes: Episodes,
    *,
    policies: PathLike | None = None,
    download: bool = False,
    truth: Kind | None = None,
    progress: Progress = silent,
) -> Task:
    """A task from episodes at hand; it is `regenerated` if the episodes' notes say that they are."""
    facts = find_problem(name)
    _check_sizes(episodes, facts, "episodes")
    return _assemble_task(
        facts, episodes, make_search_path(policies), truth=truth, download=download, progress=progress
    )


def _assemble_task(
    facts: Problem,
    episodes: Episodes,
    search_path: SearchPath,
    *,
    truth: Kind | None,
    download: bool,
    progress: Progress,
) -> Task:
    known = facts.truth(truth)
    return Task(
        name=facts.name,
        episodes=_prepare(episodes, facts),
        policies=load_targets(
            facts, search_path, observations=episodes.observation_size, download=download, progress=progress
        ),
        truth=known.values,
        discount=known.discount,
        horizon=facts.horizon,
        actions=known.actions,
        regenerated=any(note.startswith(REGENERATED) for note in episodes.notes),
    )


def _is_directory_of_files(data: PathLike) -> bool:
    directory = Path(data).expanduser()
    return directory.is_dir() and data_directory(directory) is None


def _check_hdf5(path: Path) -> None:
    with path.open("rb") as file:
        if file.read(len(SIGNATURE)) != SIGNATURE:
            raise InputError(f"{path.name}: what was downloaded is no HDF5 file; try again later")


def _check_sizes(episodes: Episodes, facts: Problem, source: PathLike) -> None:
    # Ant's further inputs were zero when DOPE's policies were trained, and D4RL has them or leaves them out.
    fitting = sorted({facts.observations, facts.policy_inputs})
    if episodes.observation_size not in fitting:
        raise InputError(
            f"{source}: has {episodes.observation_size} observations, {facts.name} has "
            f"{' or '.join(map(str, fitting))}; give the data of {facts.environment}"
        )
    if episodes.discrete or episodes.action_size != facts.actions:
        raise InputError(
            f"{source}: has {episodes.action_size} {'discrete ' * episodes.discrete}actions, {facts.name} "
            f"has vectors of {facts.actions}; give the data of {facts.environment}"
        )


def _prepare(episodes: Episodes, facts: Problem) -> Episodes:
    """Clip Adroit's actions to [-1, 1], as its simulator does, and note a differing size."""
    notes = episodes.notes
    action = episodes.action
    if facts.family == "adroit":
        action = np.clip(action, -1, 1)
        clipped = int((action != episodes.action).any(axis=1).sum())
        if clipped:
            notes += (f"actions are clipped to [-1, 1] ({clipped} of {episodes.steps} steps)",)
    if abs(episodes.steps / facts.steps - 1) > 0.01:
        notes += (f"{episodes.steps} steps; the published data have {facts.steps}",)
    return replace(episodes, action=action, notes=notes)
