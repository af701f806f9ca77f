"""NPZ files: arrays named as in D4RL, and our own layout, which keeps episodes exactly."""

from __future__ import annotations

import os
import shutil
import zipfile
from pathlib import Path

import numpy as np

from vlbm.data.episodes import Episodes
from vlbm.data.readers import check, layout
from vlbm.data.readers.packed import allocate_in
from vlbm.data.readers.transitions import FIELDS, REQUIRED, Allocate, allocate_in_memory, assemble
from vlbm.errors import InputError

SMALL = ("length", "terminated", "n_actions", "notes")


def load(path: check.Path, *, n_actions: int | None = None) -> Episodes:
    """Episodes written by `save_npz`, or flat arrays with D4RL's names and `log_probs`."""
    # Unpickling could run code.
    with check.translate_errors(path, "NPZ"), np.load(path, allow_pickle=False) as file:
        arrays = {name: _read_member(path, file, name) for name in _select_fields(path)}
    return _make_episodes(path, arrays, n_actions, allocate_in_memory)


def load_in_chunks(path: check.Path, folder: Path, *, n_actions: int | None = None) -> Episodes:
    """As `load`, with memory-mapped files in the folder, which must outlive the episodes."""
    arrays = {}
    with check.translate_errors(path, "NPZ"), zipfile.ZipFile(path) as archive:
        for name in _select_fields(path):
            file = folder / f"from.{name.replace('/', '.')}.npy"
            with archive.open(f"{name}.npy") as packed, open(file, "wb") as unpacked:
                shutil.copyfileobj(packed, unpacked, 1 << 20)
            arrays[name] = np.load(file, mmap_mode=None if name in SMALL else "r", allow_pickle=False)
    return _make_episodes(path, arrays, n_actions, allocate_in(folder))


def save_npz(episodes: Episodes, path: check.Path) -> None:
    """Write episodes to a compressed file that `load` restores exactly; the write is atomic."""
    target = Path(path)
    arrays = {name: getattr(episodes, name) for name in layout.FIELDS}
    if episodes.log_prob is not None:
        arrays["log_prob"] = episodes.log_prob
    if episodes.n_actions is not None:
        arrays["n_actions"] = np.asarray(episodes.n_actions)
    if episodes.notes:
        arrays["notes"] = np.asarray(episodes.notes)
    # In the same folder: a rename is atomic only within a file system.
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
        names = set(_list_arrays(path))
    except InputError:
        return False
    return bool(names & {"observations", "observation"}) and bool(names & {"actions", "action"})


def _list_arrays(path: check.Path) -> list[str]:
    with check.translate_errors(path, "NPZ"), zipfile.ZipFile(path) as archive:
        return [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]


def _read_member(path: check.Path, file: np.lib.npyio.NpzFile, name: str) -> np.ndarray:
    try:
        return file[name]
    except ValueError as error:
        if "allow_pickle" not in str(error):
            raise
        raise InputError(
            f"{path}: field '{name}' holds Python objects, not numbers (arrays of unequal lengths?); "
            "save it as one array of numbers"
        ) from error


def _select_fields(path: check.Path) -> list[str]:
    """Which fields of the file are read, in either layout."""
    names = _list_arrays(path)
    ours = "length" in names
    check.present(path, names, layout.FIELDS if ours else REQUIRED)
    wanted = (*layout.FIELDS, "log_prob", *SMALL) if ours else FIELDS
    return [name for name in dict.fromkeys(wanted) if name in names]


def _make_episodes(
    path: check.Path, arrays: dict[str, np.ndarray], n_actions: int | None, allocate: Allocate
) -> Episodes:
    if "length" not in arrays:
        return assemble(path, arrays, n_actions=n_actions, allocate=allocate)
    notes = tuple(str(note) for note in arrays.pop("notes", ()))
    logged = arrays.pop("n_actions", None)
    if n_actions is None and logged is not None:
        n_actions = int(logged)
    episodes = layout.make_episodes(path, arrays, n_actions=n_actions, notes=notes, writer="save_npz")
    layout.check_numbers(path, episodes)
    return episodes
