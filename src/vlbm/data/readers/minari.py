"""Minari data sets, by directory or by id."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
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
    from vlbm.data.readers.minari_folder import MinariFolder

    return read(path, MinariFolder(path, directory), n_actions)


def data_directory(path: check.Path) -> Path | None:
    """Where a data set's files are, given its directory, the `data` in it, or the main file in that."""
    given = Path(path)
    candidates = (given / "data", given, given.parent if given.name == "main_data.hdf5" else given)
    return next((place for place in candidates if os.path.isfile(place / "metadata.json")), None)


def find_local(name: str) -> Path | None:
    """Where the data set of that id is on this machine, by Minari's own rule, without importing Minari."""
    root = os.environ.get("MINARI_DATASETS_PATH")
    place = (Path(root) if root else Path.home() / ".minari" / "datasets") / name
    return data_directory(place) if name and os.path.isdir(place) else None


def read(path: check.Path, dataset: Any, n_actions: int | None = None) -> Episodes:
    """Episodes of a data set that Minari has opened; `path` is what messages call it."""
    from gymnasium import spaces

    space = dataset.action_space
    notes: list[str] = []
    if isinstance(dataset.observation_space, spaces.Dict):
        notes.append(f"observations join the parts {', '.join(dataset.observation_space)} in this order")
    start = 0
    if isinstance(space, spaces.Discrete):
        start = int(space.start)
        n_actions = check.action_count(path, "action_space", int(space.n)) if n_actions is None else n_actions
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
    if size == 0 or (n_actions is None and math.prod(space.shape) == 0):
        raise InputError(f"{path}: observations or actions have no numbers; give a data set that has some")

    observations, actions, rewards, terminated = [], [], [], []
    for episode in _iterate_episodes(path, dataset):
        place = f"of episode {episode.id}"
        reward = np.asarray(episode.rewards)
        check.numeric(path, f"rewards {place}", reward.dtype)
        check.column(path, f"rewards {place}", reward.shape)
        steps = len(reward)
        if steps == 0:
            continue
        observation = _flatten(path, f"observations {place}", dataset.observation_space, episode.observations)
        action = _flatten(path, f"actions {place}", space, episode.actions, one_hot=False)
        ended = np.asarray(episode.terminations).reshape(-1)
        if len(observation) != steps + 1 or len(action) != steps:
            raise InputError(
                f"{path}: episode {episode.id} has {len(observation)} observations, {len(action)} actions "
                f"and {steps} rewards; an episode has one observation more than it has actions and rewards"
            )
        if len(ended) != steps:
            raise InputError(
                f"{path}: episode {episode.id} has {len(ended)} terminations, but {steps} rewards; "
                "every step has one of each"
            )
        observations.append(check.finite(path, f"observations {place}", observation))
        rewards.append(check.finite(path, f"rewards {place}", reward.reshape(-1)))
        if n_actions is None:
            actions.append(check.finite(path, f"actions {place}", action))
        else:
            ids = action.reshape(-1) - start
            actions.append(check.action_ids(path, f"actions {place}", ids, n_actions)[0])
        check.numeric(path, f"terminations {place}", ended.dtype)
        terminated.append(bool(check.flags(path, f"terminations {place}", ended)[-1]))
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
        observation_names=_name_numbers(path, dataset.observation_space),
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


def _name_numbers(path: check.Path, space: Any) -> tuple[str, ...] | None:
    """Names of the numbers in an observation, if it has parts with names."""
    from gymnasium import spaces

    if not isinstance(space, spaces.Dict):
        return None
    sizes = {name: _count_numbers(path, part) for name, part in space.items()}
    return tuple(
        name if size == 1 else f"{name}[{index}]" for name, size in sizes.items() for index in range(size)
    )


def _flatten(
    path: check.Path, name: str, space: Any, values: Any, *, one_hot: bool = True
) -> Float[np.ndarray, "rows size"]:
    """Observations or actions of one episode as vectors; ids may stay as they are."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict | spaces.Tuple):
        keys: list[Any] = list(space) if isinstance(space, spaces.Dict) else list(range(len(space)))
        found = set(values) if isinstance(values, Mapping) else set(range(len(values)))
        if found != set(keys):
            raise InputError(
                f"{path}: field '{name}' has other parts than its space; write the data set again"
            )
        parts = [_flatten(path, name, space[key], values[key]) for key in keys]
        if len({len(part) for part in parts}) > 1:
            raise InputError(
                f"{path}: field '{name}' has parts of different lengths; write the data set again"
            )
        return np.concatenate(parts, axis=1)
    array = np.asarray(values)
    check.numeric(path, name, array.dtype)
    size = math.prod(space.shape)
    if array.ndim == 0 or array.size != len(array) * size:
        raise InputError(
            f"{path}: field '{name}' has shape {array.shape} where rows of shape {space.shape} belong; "
            "write the data set again"
        )
    array = array.reshape(len(array), size)
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete) and array.dtype.kind in "uib":
        # In fewer bits, or without sign, counting from another number would wrap around.
        array = array.astype(np.int64)
    if not one_hot:
        return array
    if isinstance(space, spaces.Discrete):
        return _one_hot(path, name, array[:, 0] - int(space.start), int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        digits = array - space.start.reshape(-1)
        counts = space.nvec.reshape(-1)
        return np.concatenate(
            [_one_hot(path, name, digits[:, i], int(n)) for i, n in enumerate(counts)], axis=1
        )
    return array


def _one_hot(
    path: check.Path, name: str, ids: Shaped[np.ndarray, " rows"], size: int
) -> Float[np.ndarray, "rows size"]:
    check.action_ids(path, name, ids, size)
    return (ids[:, None] == np.arange(size)).astype(np.float32)


def _shorten(space: Any) -> str:
    text = str(space)
    return text if len(text) < 80 else text[:77] + "..."
