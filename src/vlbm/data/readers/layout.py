"""Our own layout of episodes, field by field, as NPZ files and packed folders hold it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from jaxtyping import Shaped

from vlbm.data.episodes import Episodes
from vlbm.data.readers import check
from vlbm.errors import InputError

FIELDS = ("observation", "action", "reward", "length", "terminated")
NUMBERS = ("observation", "action", "reward", "log_prob")

BLOCK_ROWS = 65_536


def make_episodes(
    path: check.Path,
    arrays: Mapping[str, np.ndarray],
    *,
    n_actions: int | None,
    notes: tuple[str, ...],
    writer: str,
) -> Episodes:
    """Arrays as they are, if their shapes belong together; `writer` is what makes such files."""
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
    }
    for name, shape in expected.items():
        if name in arrays and not _fits(arrays[name].shape, shape):
            raise InputError(
                f"{path}: field '{name}' has shape {arrays[name].shape} where ({', '.join(map(str, shape))}) "
                f"belongs ({episodes} episodes, {steps} steps); write the file again with {writer}"
            )
    check.not_empty(path, steps)
    if length.dtype.kind not in "iu" or length.min() < 1 or length.sum() != steps:
        raise InputError(
            f"{path}: field 'length' must hold whole numbers from 1 that add up to the {steps} steps "
            f"in 'reward'; it adds up to {length.sum()}"
        )
    return Episodes(
        observation=arrays["observation"],
        action=arrays["action"],
        reward=reward,
        length=length,
        terminated=check.flags(path, "terminated", arrays["terminated"]),
        log_prob=arrays.get("log_prob"),
        n_actions=n_actions,
        notes=notes,
    )


def check_numbers(path: check.Path, episodes: Episodes) -> None:
    """Every number is finite, and every id is one of the n_actions; read in blocks."""
    for name in NUMBERS:
        values = getattr(episodes, name)
        if values is None:
            continue
        for begin, block in iterate_blocks(values):
            check.finite(path, name, block, at=range(begin, begin + len(block)))
    if episodes.n_actions is not None:
        check.action_ids(path, "action", episodes.action, episodes.n_actions)


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
