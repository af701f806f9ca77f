"""Packed folders: memory-mapped NumPy arrays, for data larger than memory."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from vlbm import limits
from vlbm.data.episodes import Episodes, concatenate_final_observed
from vlbm.data.readers import check, layout, npy
from vlbm.data.readers.transitions import Allocate
from vlbm.errors import InputError
from vlbm.writing import STANDARD_OUTPUT, unfinished_folder

DESCRIPTION = "episodes.json"
KIND = "vlbm episodes"
VERSION = 1
MOST_TEXT = 1 << 26  # bytes of the description, which is short


def load(path: check.Path, *, n_actions: int | None = None) -> Episodes:
    """Episodes with memory-mapped arrays, all of whose values are checked, a block at a time."""
    folder = Path(path)
    described = _read_description(path)
    fields = dict.fromkeys((*layout.FIELDS, *layout.NUMBERS, "final_observed"))
    present = [name for name in fields if _has_field(folder, name)]
    check.present(path, present, layout.FIELDS)
    arrays = {name: _open_array(path, folder / f"{name}.npy") for name in present}
    logged = described.get("n_actions")
    if logged is not None and n_actions is None:
        n_actions = check.action_count(path, f"n_actions of {DESCRIPTION}", logged)
    elif isinstance(logged, int) and n_actions is not None and n_actions < logged:
        raise InputError(
            f"{path}: has {logged} discrete actions, more than n_actions={n_actions}; leave it out"
        )
    notes = described.get("notes", [])
    if not isinstance(notes, list) or not all(isinstance(note, str) for note in notes):
        raise InputError(f"{path}: the notes of {DESCRIPTION} are no list of texts; correct or remove them")
    return layout.make_episodes(
        path,
        arrays,
        n_actions=n_actions,
        notes=tuple(notes),
        names={name: described.get(name) for name in layout.NAMES},
        writer="vlbm data pack",
    )


def save_packed(parts: Episodes | Iterable[Episodes], path: check.Path) -> Episodes:
    """Write episodes, or one collection after another, to a folder, and map them from there.

    Parts are written one at a time, so that they need not fit in memory together.
    """
    with create_folder(path) as folder:
        whole: Episodes | None = None
        columns: dict[str, _Column] = {}
        for part in (parts,) if isinstance(parts, Episodes) else parts:
            layout.check_numbers(path, part)
            if whole is None:
                columns = {
                    name: _Column(path, folder / f"{name}.npy", getattr(part, name))
                    for name in layout.NUMBERS
                    if getattr(part, name) is not None
                }
            for name, column in columns.items():
                column.append(getattr(part, name))
            whole = part if whole is None else _append_part(path, whole, part)
        if whole is None:
            raise InputError(f"{path}: there are no episodes to write")
        for column in columns.values():
            column.close()
        write_description(folder, whole)
    return load(path, n_actions=whole.n_actions)


def write_description(folder: Path, episodes: Episodes) -> None:
    """Write lengths, terminations and metadata."""
    np.save(folder / "length.npy", episodes.length, allow_pickle=False)
    np.save(folder / "terminated.npy", episodes.terminated, allow_pickle=False)
    if episodes.final_observed is not None:
        np.save(folder / "final_observed.npy", episodes.final_observed, allow_pickle=False)
    described: dict[str, Any] = {
        "kind": KIND,
        "version": VERSION,
        "episodes": episodes.count,
        "steps": int(episodes.length.sum()),
        "n_actions": episodes.n_actions,
        "notes": list(episodes.notes),
        **{name: getattr(episodes, name) for name in layout.NAMES},
    }
    (folder / DESCRIPTION).write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")


@contextmanager
def create_folder(path: check.Path) -> Iterator[Path]:
    """A temporary folder that is renamed to `path` once everything has been written."""
    target = Path(path)
    if target == STANDARD_OUTPUT:
        raise InputError("-: is standard output, and this is a folder; give it a name")
    if target.exists():
        raise InputError(f"{path}: exists already; remove it or give another name")
    with unfinished_folder(target) as unfinished:
        yield unfinished
        try:
            os.rename(unfinished, target)
        except OSError as error:  # another process was quicker
            raise InputError(f"{path}: cannot be made ({error.strerror}); give another name") from error


def allocate_in(folder: Path) -> Allocate:
    """An allocator of memory-mapped arrays in the folder."""

    def allocate(name: str, shape: tuple[int, ...], dtype: type) -> np.ndarray:
        file = folder / f"{name}.npy"
        values = np.lib.format.open_memmap(file, mode="w+", dtype=np.dtype(dtype), shape=shape)
        # Reserve the space now: writing to a sparse mapping on a full disk kills the process.
        with open(file, "r+b") as opened:
            os.posix_fallocate(opened.fileno(), 0, file.stat().st_size)
        return values

    return allocate


class _Column:
    """A NumPy file that grows."""

    def __init__(self, path: check.Path, file: Path, like: np.ndarray) -> None:
        self._path, self._name = path, file.stem
        self._dtype, self._size, self._rows = like.dtype, like.shape[1:], 0
        self._file: BinaryIO = open(file, "wb")  # noqa: SIM115 (open as long as the folder is being written)
        self._write_header()

    def append(self, values: np.ndarray | None) -> None:
        if values is None:
            raise InputError(
                f"{self._path}: some parts have '{self._name}' and some do not; leave it out of all"
            )
        if (values.dtype, values.shape[1:]) != (self._dtype, self._size):
            raise InputError(
                f"{self._path}: field '{self._name}' has type {values.dtype} and size {values.shape[1:]} in "
                f"one part, {self._dtype} and {self._size} in another; all parts must be alike"
            )
        for _, block in layout.iterate_blocks(values):
            self._file.write(np.ascontiguousarray(block).data)
        self._rows += len(values)

    def close(self) -> None:
        """Write the final number of rows into the header, which has room for any number."""
        self._file.seek(0)
        self._write_header()
        self._file.close()

    def _write_header(self) -> None:
        header = {
            "descr": np.lib.format.dtype_to_descr(self._dtype),
            "fortran_order": False,
            "shape": (self._rows, *self._size),
        }
        np.lib.format.write_array_header_1_0(self._file, header)


def _read_description(path: check.Path) -> dict[str, Any]:
    """What the folder says of itself."""
    file = Path(path) / DESCRIPTION
    limits.check_inside(path, file)
    with limits.open_regular(file) as opened, check.translate_errors(path, "a packed folder"):
        limits.check_claim(path, os.fstat(opened.fileno()).st_size, what=DESCRIPTION, limit=MOST_TEXT)
        described = json.loads(opened.read())
    if (
        not isinstance(described, dict)
        or described.get("kind") != KIND
        or described.get("version") != VERSION
    ):
        raise InputError(
            f"{path}: {DESCRIPTION} does not describe packed episodes of version {VERSION}; "
            "make the folder again with: vlbm data pack"
        )
    return described


def _has_field(folder: Path, name: str) -> bool:
    return os.path.lexists(folder / f"{name}.npy")


def _open_array(path: check.Path, file: Path) -> np.ndarray:
    """Per-step arrays are mapped, per-episode arrays are read."""
    name = file.stem
    limits.check_inside(path, file)
    with limits.open_regular(file) as opened:
        held = os.fstat(opened.fileno()).st_size
        header = npy.read_header(path, name, opened, held=held, kind="a packed folder")
        with check.translate_errors(path, "a packed folder"):
            if name not in layout.NUMBERS:
                limits.check_claim(path, held, what=f"field '{name}'")
                opened.seek(0)
                return np.lib.format.read_array(opened, allow_pickle=False)
            return np.memmap(
                opened,
                header.dtype,
                mode="r",
                offset=header.offset,
                shape=header.shape,
                order="F" if header.fortran_order else "C",
            )


def _append_part(path: check.Path, whole: Episodes, part: Episodes) -> Episodes:
    """Lengths, terminations and notes of both; per-step arrays are on disk already."""
    if (whole.n_actions is None) != (part.n_actions is None):
        raise InputError(f"{path}: some parts have discrete actions and some have vectors; write them apart")
    return replace(
        whole,
        length=np.concatenate([whole.length, part.length]),
        terminated=np.concatenate([whole.terminated, part.terminated]),
        final_observed=concatenate_final_observed([whole, part]),
        n_actions=None if whole.n_actions is None else max(whole.n_actions, part.n_actions or 0),
        notes=tuple(dict.fromkeys((*whole.notes, *part.notes))),
    )
