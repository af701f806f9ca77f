"""NPZ files: arrays named as in D4RL, and our own layout, which keeps episodes exactly."""

from __future__ import annotations

import os
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from vlbm import limits
from vlbm.data.episodes import Episodes
from vlbm.data.readers import check, layout, npy
from vlbm.data.readers.packed import allocate_in
from vlbm.data.readers.transitions import FIELDS, REQUIRED, Allocate, allocate_in_memory, assemble
from vlbm.errors import InputError
from vlbm.writing import write_atomically

TEXTS = ("notes", *layout.NAMES)
SMALL = ("length", "terminated", "final_observed", "n_actions", *TEXTS)


def load(path: check.Path, *, n_actions: int | None = None) -> Episodes:
    """Episodes written by `save_npz`, or flat arrays with D4RL's names and `log_probs`."""
    arrays = {}
    with _open_archive(path) as archive:
        for name in _select_fields(path, archive):
            with archive.open(f"{name}.npy") as member:
                # Unpickling could run code.
                arrays[name] = np.lib.format.read_array(member, allow_pickle=False)
    return _make_episodes(path, arrays, n_actions, allocate_in_memory)


def load_in_chunks(path: check.Path, folder: Path, *, n_actions: int | None = None) -> Episodes:
    """As `load`, with memory-mapped files in the folder, which must outlive the episodes."""
    arrays = {}
    room = shutil.disk_usage(folder).free
    with _open_archive(path) as archive:
        for name in _select_fields(path, archive, limit=room):
            file = folder / f"from.{name.replace('/', '.')}.npy"
            with archive.open(f"{name}.npy") as packed, open(file, "wb") as unpacked:
                shutil.copyfileobj(packed, unpacked, 1 << 20)
            arrays[name] = np.load(file, mmap_mode=None if name in SMALL else "r", allow_pickle=False)
    return _make_episodes(path, arrays, n_actions, allocate_in(folder))


def save_npz(episodes: Episodes, path: check.Path) -> None:
    """Write episodes to a compressed file that `load` restores exactly; the write is atomic."""
    arrays = {name: getattr(episodes, name) for name in layout.FIELDS}
    if episodes.log_prob is not None:
        arrays["log_prob"] = episodes.log_prob
    if episodes.n_actions is not None:
        arrays["n_actions"] = np.asarray(episodes.n_actions)
    if episodes.final_observed is not None:
        arrays["final_observed"] = episodes.final_observed
    for name in layout.NAMES:
        if getattr(episodes, name) is not None:
            arrays[name] = np.asarray(getattr(episodes, name))
    if episodes.notes:
        arrays["notes"] = np.asarray(episodes.notes)

    def write(temporary: Path) -> None:
        # An open file, because to a name NumPy would add an ending.
        with open(temporary, "wb") as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)

    write_atomically(Path(path), write)


def holds_steps(path: check.Path) -> bool:
    """Whether a zip file is an NPZ file of recorded steps rather than, say, a policy's weights."""
    try:
        with _open_archive(path) as archive:
            names = set(_list_arrays(archive))
    except InputError:
        return False
    return bool(names & {"observations", "observation"}) and bool(names & {"actions", "action"})


@contextmanager
def _open_archive(path: check.Path) -> Iterator[zipfile.ZipFile]:
    with (
        limits.open_regular(path) as file,
        check.translate_errors(path, "NPZ"),
        zipfile.ZipFile(file) as archive,
    ):
        yield archive


def _list_arrays(archive: zipfile.ZipFile) -> list[str]:
    return [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]


def _select_fields(path: check.Path, archive: zipfile.ZipFile, *, limit: int | None = None) -> list[str]:
    """Which fields of the file are read, in either layout; none of them declares more than it holds."""
    names = _list_arrays(archive)
    ours = "length" in names
    check.present(path, names, layout.FIELDS if ours else REQUIRED)
    wanted = (*layout.FIELDS, "log_prob", *SMALL) if ours else FIELDS
    chosen = [name for name in dict.fromkeys(wanted) if name in names]
    # No more than the declared size is ever unpacked.
    held = {name: archive.getinfo(f"{name}.npy").file_size for name in chosen}
    limits.check_claim(
        path, sum(held.values()), file_bytes=os.stat(path).st_size, what="its arrays, unpacked,", limit=limit
    )
    for name in chosen:
        with archive.open(f"{name}.npy") as member:
            npy.read_header(path, name, member, held=held[name], kind="NPZ", text=name in TEXTS)
    return chosen


def _make_episodes(
    path: check.Path, arrays: dict[str, np.ndarray], n_actions: int | None, allocate: Allocate
) -> Episodes:
    if "length" not in arrays:
        return assemble(path, arrays, n_actions=n_actions, allocate=allocate)
    notes = tuple(str(note) for note in arrays.pop("notes", np.empty(0, str)).reshape(-1))
    names = {name: arrays.pop(name).tolist() for name in layout.NAMES if name in arrays}
    logged = arrays.pop("n_actions", None)
    if n_actions is None and logged is not None:
        n_actions = check.action_count(path, "n_actions", logged.item() if logged.size == 1 else logged.shape)
    return layout.make_episodes(
        path, arrays, n_actions=n_actions, notes=notes, names=names, writer="save_npz"
    )
