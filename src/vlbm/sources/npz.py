"""NPZ files: arrays named as in D4RL, and our own layout, which keeps episodes exactly."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import numpy as np

from vlbm.episodes import Episodes
from vlbm.errors import InputError
from vlbm.sources import check
from vlbm.sources.transitions import FIELDS, REQUIRED, assemble

OURS = ("observation", "action", "reward", "length", "terminated")


def load(path: check.Path, *, choices: int | None = None) -> Episodes:
    """Episodes written by `save_npz`, or flat arrays with D4RL's names and `log_probs`."""
    names = _names(path)
    if "length" in names:
        check.present(path, names, OURS)
        wanted: tuple[str, ...] = (*OURS, "log_prob", "choices", "notes")
    else:
        check.present(path, names, REQUIRED)
        wanted = FIELDS
    # Pickled objects could run code, so they are never allowed in.
    with check.reading(path, "NPZ"), np.load(path, allow_pickle=False) as file:
        arrays = {name: _member(path, file, name) for name in wanted if name in names}
    if "length" in names:
        return _ours(path, arrays, choices)
    return assemble(path, arrays, choices=choices)


def save_npz(episodes: Episodes, path: check.Path) -> None:
    """Write episodes to a compressed file that `load` gives back exactly; never leaves half a file."""
    target = Path(path)
    arrays = {name: getattr(episodes, name) for name in OURS}
    if episodes.log_prob is not None:
        arrays["log_prob"] = episodes.log_prob
    if episodes.choices is not None:
        arrays["choices"] = np.asarray(episodes.choices)
    if episodes.notes:
        arrays["notes"] = np.asarray(episodes.notes)
    # In the same folder, because a file can only be moved in one stroke within a file system.
    unfinished = target.with_name(f".{target.name}.{os.getpid()}.unfinished")
    try:
        with open(unfinished, "wb") as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)
        os.replace(unfinished, target)
    finally:
        unfinished.unlink(missing_ok=True)


def holds_steps(path: check.Path) -> bool:
    """Whether a zip file is an NPZ file of recorded steps rather than, say, a policy's weights."""
    try:
        names = set(_names(path))
    except InputError:
        return False
    return bool(names & {"observations", "observation"}) and bool(names & {"actions", "action"})


def _names(path: check.Path) -> list[str]:
    with check.reading(path, "NPZ"), zipfile.ZipFile(path) as archive:
        return [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]


def _member(path: check.Path, file: np.lib.npyio.NpzFile, name: str) -> np.ndarray:
    try:
        return file[name]
    except ValueError as error:
        if "allow_pickle" not in str(error):
            raise
        raise InputError(
            f"{path}: field '{name}' holds Python objects, not numbers (arrays of unequal lengths?); "
            "save it as one array of numbers"
        ) from error


def _fits(found: tuple[int, ...], expected: tuple[int | str, ...]) -> bool:
    """Equal shapes, where a word in `expected` stands for any size from 1."""
    return len(found) == len(expected) and all(
        have > 0 if isinstance(want, str) else have == want
        for have, want in zip(found, expected, strict=True)
    )


def _ours(path: check.Path, arrays: dict[str, np.ndarray], choices: int | None) -> Episodes:
    """Our own layout as it is: checked, but never converted."""
    for name, values in arrays.items():
        if name != "notes":
            check.numeric(path, name, values.dtype)
    if choices is None and "choices" in arrays:
        choices = int(arrays["choices"])
    length, reward, observation = arrays["length"], arrays["reward"], arrays["observation"]
    steps, episodes = len(reward) if reward.ndim else 0, length.size
    expected: dict[str, tuple[int | str, ...]] = {
        "reward": (steps,),
        "length": (episodes,),
        "terminated": (episodes,),
        "observation": (steps + episodes, "size"),
        "action": (steps, "size") if choices is None else (steps,),
        "log_prob": (steps,),
    }
    for name, shape in expected.items():
        if name in arrays and not _fits(arrays[name].shape, shape):
            raise InputError(
                f"{path}: field '{name}' has shape {arrays[name].shape} where ({', '.join(map(str, shape))}) "
                f"belongs ({episodes} episodes, {steps} steps); write the file again with save_npz"
            )
    check.not_empty(path, steps)
    if length.dtype.kind not in "iu" or length.min() < 1 or length.sum() != steps:
        raise InputError(
            f"{path}: field 'length' must hold whole numbers from 1 that add up to the {steps} steps "
            f"in 'reward'; it adds up to {length.sum()}"
        )
    for name in ("observation", "action", "reward", "log_prob"):
        if name in arrays:
            check.finite(path, name, arrays[name])
    if choices is not None:
        check.action_ids(path, "action", arrays["action"], choices)
    return Episodes(
        observation=observation,
        action=arrays["action"],
        reward=reward,
        length=length,
        terminated=check.flags(path, "terminated", arrays["terminated"]),
        log_prob=arrays.get("log_prob"),
        choices=choices,
        notes=tuple(str(note) for note in arrays.get("notes", ())),
    )
