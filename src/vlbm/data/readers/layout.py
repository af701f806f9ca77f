"""Our own layout of episodes, field by field, as NPZ files and packed folders hold it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from jaxtyping import Shaped

from vlbm.data.episodes import Episodes
from vlbm.data.readers import check
from vlbm.errors import InputError

FIELDS = ("observation", "action", "reward", "length", "terminated")
NUMBERS = ("observation", "action", "reward", "log_prob")
NAMES = ("observation_names", "action_names")

BLOCK_ROWS = 65_536


def make_episodes(
    path: check.Path,
    arrays: Mapping[str, np.ndarray],
    *,
    n_actions: int | None,
    notes: tuple[str, ...],
    names: Mapping[str, Any],
    writer: str,
) -> Episodes:
    """Checked episodes of arrays, which stay where they are; `writer` is what makes such files."""
    for name, values in arrays.items():
        check.numeric(path, name, values.dtype)
    length, reward = arrays["length"], arrays["reward"]
    steps, episodes = len(reward) if reward.ndim else 0, length.size
    expected: dict[str, tuple[int | str, ...]] = {
        "reward": (steps,),
        "length": (episodes,),
        "terminated": (episodes,),
        "observation": (steps + episodes, "size"),
        "action": (steps, "size") if n_actions is None else (steps,),
        "log_prob": (steps,),
        "final_observed": (episodes,),
    }
    for name, shape in expected.items():
        if name in arrays and not _fits(arrays[name].shape, shape):
            raise InputError(
                f"{path}: field '{name}' has shape {arrays[name].shape} where ({', '.join(map(str, shape))}) "
                f"belongs ({episodes} episodes, {steps} steps); write the file again with {writer}"
            )
    check.not_empty(path, min(steps, episodes))
    # As whole numbers of 64 bits, hostile lengths could add up to anything.
    total = length.sum(dtype=np.float64)
    if length.dtype.kind not in "iu" or length.min() < 1 or total != steps:
        raise InputError(
            f"{path}: field 'length' must hold whole numbers from 1 that add up to the {steps} steps "
            f"in 'reward'; it adds up to {total:.0f}"
        )
    if n_actions is not None and arrays["action"].dtype.kind not in "iu":
        raise InputError(
            f"{path}: field 'action' has type {arrays['action'].dtype}, but there are {n_actions} discrete "
            f"actions; write the file again with {writer}"
        )
    made = Episodes(
        observation=_native(arrays["observation"]),
        action=_native(arrays["action"], whole=n_actions is not None),
        reward=_native(reward),
        # In fewer bits, adding to them would wrap around.
        length=length.astype(np.int64, copy=False),
        terminated=check.flags(path, "terminated", arrays["terminated"]),
        log_prob=_native(arrays["log_prob"]) if "log_prob" in arrays else None,
        n_actions=n_actions,
        final_observed=check.flags(path, "final_observed", arrays["final_observed"])
        if "final_observed" in arrays
        else None,
        observation_names=_read_names(path, "observation_names", names, arrays["observation"]),
        action_names=_read_names(path, "action_names", names, arrays["action"]),
        notes=notes,
    )
    check_numbers(path, made)
    return made


def check_numbers(path: check.Path, episodes: Episodes) -> None:
    """Every number is finite, and every id is one of the n_actions; read in blocks."""
    for name in NUMBERS:
        values = getattr(episodes, name)
        if values is None:
            continue
        ids = name == "action" and episodes.n_actions is not None
        for begin, block in iterate_blocks(values):
            at = range(begin, begin + len(block))
            if ids:
                check.action_ids(path, name, block, episodes.n_actions, at=at)
            else:
                check.finite(path, name, block, at=at)


def _native(values: np.ndarray, *, whole: bool = False) -> np.ndarray:
    """The same array if it has a type that models compute with, else a copy that has."""
    if values.dtype.isnative and (whole or values.dtype in (np.float32, np.float64)):
        return values
    with np.errstate(over="ignore"):
        return values.astype(np.int64 if whole else np.float32)


def _read_names(
    path: check.Path, field: str, names: Mapping[str, Any], values: np.ndarray
) -> tuple[str, ...] | None:
    """One text for each number of a vector, or none."""
    given = names.get(field)
    if given is None:
        return None
    size = values.shape[1] if values.ndim == 2 else 0
    texts = [name for name in given if isinstance(name, str)] if isinstance(given, list) else []
    if len(texts) != size or texts != given:
        raise InputError(f"{path}: {field} must be {size} texts, one for each number; correct or remove them")
    return tuple(texts)


def iterate_blocks(
    values: Shaped[np.ndarray, "rows *size"],
) -> Iterator[tuple[int, Shaped[np.ndarray, "block *size"]]]:
    """First row and contents of each block."""
    for begin in range(0, len(values), BLOCK_ROWS):
        yield begin, values[begin : begin + BLOCK_ROWS]


def _fits(found: tuple[int, ...], expected: tuple[int | str, ...]) -> bool:
    """Equal shapes, where a word in `expected` stands for any size from 1."""
    return len(found) == len(expected) and all(
        have > 0 if isinstance(want, str) else have == want
        for have, want in zip(found, expected, strict=True)
    )
