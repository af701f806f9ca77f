"""Minari data sets, by directory or by id."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Shaped

from vlbm.data.episodes import Episodes
from vlbm.data.readers import check
from vlbm.errors import InputError, require

# Larger observations, such as images, would need too much memory; they need features first.
LARGEST_OBSERVATION = 4096


def load(path: check.Path, *, n_actions: int | None = None, download: bool = False) -> Episodes:
    """Episodes of a Minari data set: its directory, `minari:ID`, or the id of a local one.

    Observations become vectors by one rule: Box and MultiBinary spaces are laid out row by row,
    Discrete and MultiDiscrete become one-hot, and the parts of Dict and Tuple spaces follow one
    another in the space's own order. Actions are vectors (Box) or ids from 0 (Discrete).
    """
    minari = require("minari", extra="minari", purpose=f"Reading the Minari data set {path}")
    name = str(path).removeprefix("minari:")
    directory = data_directory(path) if name == str(path) else None
    directory = directory or find_local(name)
    if directory is None and download:
        with check.translate_errors(path, "a Minari data set"):
            minari.download_dataset(name)
        directory = find_local(name)
    if directory is None:
        raise InputError(
            f"{path}: there is no such Minari data set here; fetch it with: minari download {name}"
        )
    with check.translate_errors(path, "a Minari data set"):
        dataset = minari.MinariDataset(directory)
    return read(path, dataset, n_actions)


def data_directory(path: check.Path) -> Path | None:
    """Where a data set's files are, given its directory, the `data` in it, or the main file in that."""
    given = Path(path)
    candidates = (given / "data", given, given.parent if given.name == "main_data.hdf5" else given)
    return next((place for place in candidates if (place / "metadata.json").is_file()), None)


def find_local(name: str) -> Path | None:
    """Where the data set of that id is on this machine, by Minari's own rule, without importing Minari."""
    root = os.environ.get("MINARI_DATASETS_PATH")
    place = (Path(root) if root else Path.home() / ".minari" / "datasets") / name
    return data_directory(place) if name and place.is_dir() else None


def read(path: check.Path, dataset: Any, n_actions: int | None = None) -> Episodes:
    """Episodes of a data set that Minari has opened; `path` is what messages call it."""
    from gymnasium import spaces

    space = dataset.action_space
    notes: list[str] = []
    if isinstance(dataset.observation_space, spaces.Dict):
        notes.append(f"observations join the parts {', '.join(dataset.observation_space)} in this order")
    start = 0
    if isinstance(space, spaces.Discrete):
        start, n_actions = int(space.start), int(space.n) if n_actions is None else n_actions
        if start != 0:
            notes.append(f"action ids count from 0 here, from {start} in the data set")
    elif not isinstance(space, spaces.Box):
        raise InputError(
            f"{path}: the action space {_shorten(space)} is neither Box nor Discrete; no model takes it"
        )
    elif n_actions is not None:
        raise InputError(
            f"{path}: n_actions={n_actions}, but the action space {_shorten(space)} is not discrete"
        )
    size = _count_numbers(path, dataset.observation_space)
    if size > LARGEST_OBSERVATION:
        raise InputError(
            f"{path}: the observation space {_shorten(dataset.observation_space)} has {size} numbers, "
            f"more than {LARGEST_OBSERVATION}; reduce images to features first"
        )

    observations, actions, rewards, terminated = [], [], [], []
    for episode in _iterate_episodes(path, dataset):
        steps = len(episode.rewards)
        if steps == 0:
            continue
        place = f"of episode {episode.id}"
        observation = _flatten(dataset.observation_space, episode.observations)
        action = np.asarray(episode.actions)
        if len(observation) != steps + 1 or len(action) != steps:
            raise InputError(
                f"{path}: episode {episode.id} has {len(observation)} observations, {len(action)} actions "
                f"and {steps} rewards; an episode has one observation more than it has actions and rewards"
            )
        observations.append(check.finite(path, f"observations {place}", observation))
        rewards.append(check.finite(path, f"rewards {place}", np.asarray(episode.rewards).reshape(-1)))
        if n_actions is None:
            actions.append(check.finite(path, f"actions {place}", action.reshape(steps, -1)))
        else:
            ids = action.reshape(-1) - start
            actions.append(check.action_ids(path, f"actions {place}", ids, n_actions)[0])
        terminated.append(bool(episode.terminations[-1]))
    check.not_empty(path, len(rewards))
    empty = dataset.total_episodes - len(rewards)
    if empty:
        notes.append(f"{empty} episodes without a step are left out")
    return Episodes(
        observation=np.concatenate(observations),
        action=np.concatenate(actions),
        reward=np.concatenate(rewards),
        length=np.array([len(reward) for reward in rewards]),
        terminated=np.array(terminated),
        n_actions=n_actions,
        notes=tuple(notes),
    )


def _iterate_episodes(path: check.Path, dataset: Any) -> Iterator[Any]:
    episodes = iter(dataset.iterate_episodes())
    while True:
        with check.translate_errors(path, "a Minari data set"):
            episode = next(episodes, None)
        if episode is None:
            return
        yield episode


def _count_numbers(path: check.Path, space: Any) -> int:
    """How many numbers an observation has."""
    from gymnasium import spaces

    if isinstance(space, spaces.Box | spaces.MultiBinary):
        return int(np.prod(space.shape))
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    if isinstance(space, spaces.MultiDiscrete):
        return int(space.nvec.sum())
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.values() if isinstance(space, spaces.Dict) else space
        return sum(_count_numbers(path, part) for part in parts)
    raise InputError(
        f"{path}: the observation space {_shorten(space)} cannot be laid out as a vector of numbers"
    )


def _flatten(space: Any, values: Any) -> Float[np.ndarray, "rows size"]:
    """Observations of one episode as vectors."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        return np.concatenate([_flatten(part, values[name]) for name, part in space.items()], axis=1)
    if isinstance(space, spaces.Tuple):
        return np.concatenate(
            [_flatten(part, value) for part, value in zip(space, values, strict=True)], axis=1
        )
    array = np.asarray(values)
    if isinstance(space, spaces.Discrete):
        return _one_hot(array.reshape(-1) - space.start, int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        digits = (array - space.start).reshape(len(array), -1)
        return np.concatenate(
            [_one_hot(digits[:, i], n) for i, n in enumerate(space.nvec.reshape(-1))], axis=1
        )
    return array.reshape(len(array), -1)


def _one_hot(ids: Shaped[np.ndarray, " rows"], size: int) -> Float[np.ndarray, "rows size"]:
    return (ids[:, None] == np.arange(size)).astype(np.float32)


def _shorten(space: Any) -> str:
    text = str(space)
    return text if len(text) < 80 else text[:77] + "..."
