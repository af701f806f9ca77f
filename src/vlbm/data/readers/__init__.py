"""Readers: files to Episodes, validated on loading."""

from __future__ import annotations

import re
import tempfile
import zipfile
from dataclasses import fields
from pathlib import Path
from typing import Any

from vlbm.data.episodes import Episodes
from vlbm.data.readers import minari, npz, packed
from vlbm.data.readers.check import Path as PathLike
from vlbm.data.readers.columns import DELIMITERS, Columns
from vlbm.data.readers.npz import save_npz
from vlbm.data.readers.packed import save_packed
from vlbm.errors import InputError

__all__ = ["Columns", "is_data", "load", "pack", "save_npz", "save_packed"]

KINDS = "HDF5 (D4RL), NPZ, Parquet, CSV (in UTF-8), Minari directories and folders of vlbm data pack"
SUFFIXES = {".hdf5": "HDF5", ".h5": "HDF5", ".npz": "NPZ", ".parquet": "Parquet"}


def load(path: PathLike, *, n_actions: int | None = None, download: bool = False, **columns: Any) -> Episodes:
    """Episodes from a file or directory, recognised by its content, not by its name.

    `n_actions` says how many discrete actions there are. Tables (Parquet, CSV) also take the fields of
    `Columns`, such as observation="sensor" or episode="run". `minari:ID` names a Minari data set,
    which `download` may fetch.
    """
    kind = _check_kind(path, n_actions, columns)
    # Readers are imported on use, because their libraries are slow to import.
    if kind == "minari":
        return minari.load(path, n_actions=n_actions, download=download)
    if kind == "npz":
        return npz.load(path, n_actions=n_actions)
    if kind == "packed":
        return packed.load(path, n_actions=n_actions)
    if kind == "hdf5":
        from vlbm.data.readers import d4rl

        return d4rl.load(path, n_actions=n_actions)
    from vlbm.data.readers import table

    return table.load(path, Columns(**columns), n_actions=n_actions)


def pack(
    path: PathLike,
    directory: PathLike,
    *,
    n_actions: int | None = None,
    download: bool = False,
    **columns: Any,
) -> Episodes:
    """Write the episodes of a source, named as for `load`, to a folder that is memory-mapped.

    HDF5 and NPZ files are read in chunks, so that they may be larger than memory.
    """
    kind = _check_kind(path, n_actions, columns)
    if kind == "hdf5":
        from vlbm.data.readers import d4rl

        with packed.create_folder(directory) as folder:
            episodes = d4rl.load(path, n_actions=n_actions, allocate=packed.allocate_in(folder))
            packed.write_description(folder, episodes)
        return packed.load(directory)
    if kind == "npz":
        # On the same file system as the target, which must have room for the data anyway.
        with tempfile.TemporaryDirectory(dir=Path(directory).absolute().parent, prefix=".") as unpacked:
            return save_packed(npz.load_in_chunks(path, Path(unpacked), n_actions=n_actions), directory)
    return save_packed(load(path, n_actions=n_actions, download=download, **columns), directory)


def _check_kind(path: PathLike, n_actions: int | None, columns: dict[str, Any]) -> str:
    """The kind of a path; unsupported options are refused."""
    kind = _detect_kind(path)
    if kind is None:
        raise InputError(_explain_unreadable(path))
    make_columns(path, columns)
    if columns and kind != "table":
        raise InputError(
            f"{path}: {next(iter(columns))}= names columns of a table, but this is no table; leave it out"
        )
    if n_actions is not None and n_actions < 1:
        raise InputError(
            f"{path}: n_actions={n_actions} leaves no action; give how many discrete actions there are"
        )
    return kind


def make_columns(path: PathLike, columns: dict[str, Any]) -> Columns:
    """Columns by role, if these are roles."""
    unknown = sorted(columns.keys() - {field.name for field in fields(Columns)})
    if unknown:
        raise InputError(
            f"{path}: there is no option '{unknown[0]}'; options are n_actions, download and those of Columns"
        )
    return Columns(**columns)


def is_data(path: PathLike) -> bool:
    """Whether a path looks like logged episodes rather than, say, a policy; reads almost nothing."""
    kind = _detect_kind(path)
    if kind == "hdf5":
        from vlbm.data.readers import d4rl

        return d4rl.holds_steps(path)
    if kind == "npz":
        return npz.holds_steps(path)
    return kind in ("minari", "packed") or (
        kind == "table" and (_is_parquet(_read_head(path)) or _is_csv(_read_head(path)))
    )


def _detect_kind(path: PathLike) -> str | None:
    """The reader for a path, by its content."""
    place = Path(path)
    if str(path).startswith("minari:"):
        return "minari"
    if not place.exists():
        return "minari" if minari.find_local(str(path)) else None
    if place.is_dir() or place.name == "main_data.hdf5":
        if minari.data_directory(place):
            return "minari"
        if place.is_dir():
            return "packed" if (place / packed.DESCRIPTION).is_file() else None
    head = _read_head(path)
    if head.startswith(b"\x89HDF\r\n\x1a\n"):
        return "hdf5"
    if head.startswith(b"PK\x03\x04"):
        return "npz" if _has_arrays(place) else None
    if _is_parquet(head):
        return "table"
    return "table" if head and _is_text(head) and place.suffix.lower() not in SUFFIXES else None


def _explain_unreadable(path: PathLike) -> str:
    """Why no reader accepts the path."""
    place = Path(path)
    if not place.exists():
        return f"{path}: there is no such file; check the path, or write minari:ID for a Minari data set"
    if place.is_dir():
        return (
            f"{path}: is a directory without Minari's data/metadata.json or a {packed.DESCRIPTION} of packed "
            "episodes; give a file, a Minari data set or what vlbm data pack has written"
        )
    head = _read_head(path)
    if not head:
        return f"{path}: is empty; fetch or write it again"
    ending = place.suffix.lower()
    if _is_text(head):
        what = "text, perhaps a web page or an error message"
        if head.startswith(b"version https://git-lfs"):
            what = "a Git LFS pointer (run: git lfs pull)"
        return f"{path}: is named {ending} but holds {what}, not {SUFFIXES.get(ending)}; fetch it again"
    if head.startswith(b"\x1f\x8b"):
        return f"{path}: is compressed with gzip; unpack it first"
    if head.startswith(b"PK\x03\x04"):
        return f"{path}: is a zip archive without NumPy arrays, not logged episodes; readable are {KINDS}"
    if head.startswith(b"\x93NUMPY"):
        return f"{path}: is a single NumPy array without a name; save all fields together with numpy.savez"
    return f"{path}: is in no known format; readable are {KINDS}"


def _read_head(path: PathLike) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(8192)
    except OSError as error:
        raise InputError(
            f"{path}: cannot be opened ({error.strerror}); check the path and its permissions"
        ) from error


def _has_arrays(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith(".npy") for name in archive.namelist())
    except Exception:
        # A damaged .npz goes to the reader, which reports the damage.
        return path.suffix.lower() == ".npz"


def _is_parquet(head: bytes) -> bool:
    return head.startswith(b"PAR1")


def _is_text(head: bytes) -> bool:
    # The head may end inside a character, which takes up to four bytes.
    return b"\0" not in head and any(_decodes(head[: len(head) - cut]) for cut in range(4))


def _decodes(text: bytes) -> bool:
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _is_csv(head: bytes) -> bool:
    """A line of at least three names over a line of as many cells, one of them a number."""
    lines = head.decode("utf-8-sig", errors="replace").splitlines()
    if len(lines) < 2:
        return False
    separator = max(DELIMITERS, key=lines[0].count)
    names, cells = (line.split(separator) for line in lines[:2])
    plausible = all(re.fullmatch(r'\s*"?[\w .:/+\[\]()-]*"?\s*', cell) for cell in names + cells)
    numbers = any(re.fullmatch(r'\s*"?[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?"?\s*', cell) for cell in cells)
    return len(names) >= 3 and len(names) == len(cells) and plausible and numbers
