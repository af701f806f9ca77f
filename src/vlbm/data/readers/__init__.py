"""Readers: files to Episodes, validated on loading."""

from __future__ import annotations

import glob
import os
import re
import shutil
import zipfile
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from vlbm import limits
from vlbm.data.episodes import Episodes
from vlbm.data.readers import compressed, minari, npz, packed, several
from vlbm.data.readers.check import Path as PathLike
from vlbm.data.readers.columns import DELIMITERS, Columns
from vlbm.data.readers.npz import save_npz
from vlbm.data.readers.packed import save_packed
from vlbm.errors import InputError
from vlbm.writing import unfinished_folder

__all__ = ["Columns", "is_data", "load", "pack", "save_npz", "save_packed"]

KINDS = (
    "HDF5 (D4RL), NPZ, Parquet, CSV and JSON records (in UTF-8, also with gzip), Minari directories and "
    "folders of vlbm data pack"
)
HEAD = 8192  # bytes that tell one format from another
SUFFIXES = {".hdf5": "HDF5", ".h5": "HDF5", ".npz": "NPZ", ".parquet": "Parquet"}


def load(
    path: PathLike | Sequence[PathLike],
    *,
    n_actions: int | None = None,
    download: bool = False,
    **columns: Any,
) -> Episodes:
    """Episodes from a file or directory, recognised by its content, not by its name.

    Several are given as a list, or as a pattern such as `logs/*.csv`: their episodes are laid end to end.
    Tables (Parquet, CSV, JSON records) also take the fields of `Columns`, such as observation="sensor" or
    episode="run".

    Args:
        path: A file, a folder, `minari:ID`, a pattern, or a list of them.
        n_actions: How many discrete actions there are, if not all were logged.
        download: Whether a missing Minari data set may be fetched.
        columns: For tables: roles (observation, action, reward, episode, step, terminated, truncated,
            log_prob, propensity, next_observation) and the names of their columns.
    """
    options: dict[str, Any] = {"n_actions": n_actions, "download": download, **columns}
    paths = several.expand(path)
    if len(paths) > 1:
        return several.join(paths, (_load_one(one, **options) for one in paths))
    return _load_one(paths[0], **options)


def _load_one(
    path: PathLike, *, n_actions: int | None = None, download: bool = False, **columns: Any
) -> Episodes:
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
    path: PathLike | Sequence[PathLike],
    directory: PathLike,
    *,
    n_actions: int | None = None,
    download: bool = False,
    **columns: Any,
) -> Episodes:
    """Write the episodes of a source, named as for `load`, to a folder that is memory-mapped.

    HDF5 and NPZ files are read in chunks, so that they may be larger than memory; of several files, one at a
    time is in memory.
    """
    options: dict[str, Any] = {"n_actions": n_actions, "download": download, **columns}
    paths = several.expand(path)
    if len(paths) > 1:
        parts = (_load_one(one, **options) for one in paths)
        return save_packed(several.check_alike(paths, parts), directory)
    path = paths[0]
    kind = _check_kind(path, n_actions, columns)
    if kind == "hdf5":
        from vlbm.data.readers import d4rl

        with packed.create_folder(directory) as folder:
            room, allocate = shutil.disk_usage(folder).free, packed.allocate_in(folder)
            episodes = d4rl.load(path, n_actions=n_actions, allocate=allocate, limit=room)
            packed.write_description(folder, episodes)
        return packed.load(directory, n_actions=episodes.n_actions)
    if kind == "npz":
        # On the same file system as the target, which must have room for the data anyway.
        with unfinished_folder(Path(directory)) as unpacked:
            return save_packed(npz.load_in_chunks(path, unpacked, n_actions=n_actions), directory)
    return save_packed(_load_one(path, **options), directory)


def _check_kind(path: PathLike, n_actions: int | None, columns: dict[str, Any]) -> str:
    """The kind of a path; unsupported options are refused."""
    if not os.fspath(path):
        raise InputError("'': no file has an empty name; give the name of a file or folder")
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
    roles = [field.name for field in fields(Columns)]
    unknown = sorted(columns.keys() - set(roles))
    if unknown:
        raise InputError(
            f"{path}: there is no option '{unknown[0]}'; a column can be {', '.join(roles[:-1])} or "
            f"{roles[-1]}"
        )
    return Columns(**columns)


def is_data(path: PathLike) -> bool:
    """Whether a path looks like logged episodes rather than, say, a policy; reads almost nothing."""
    if several.is_pattern(path):
        return bool(glob.glob(str(path))) and all(map(is_data, several.expand(path)))
    kind = _detect_kind(path)
    if kind == "hdf5":
        from vlbm.data.readers import d4rl

        return d4rl.holds_steps(path)
    if kind == "npz":
        return npz.holds_steps(path)
    return kind in ("minari", "packed") or (kind == "table" and _is_table_of_steps(path))


def _is_table_of_steps(path: PathLike) -> bool:
    from vlbm.data.readers.records import is_json, looks_like_steps

    head = _unpack_head(path, _read_head(path))
    return _is_parquet(head) or (looks_like_steps(head) if is_json(head) else _is_csv(head))


def _detect_kind(path: PathLike) -> str | None:
    """The reader for a path, by its content."""
    place = Path(path)
    if str(path).startswith("minari:"):
        return "minari"
    if not os.path.lexists(place):
        return "minari" if minari.find_local(str(path)) else None
    if not place.is_dir():
        limits.check_regular_file(place)
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
    head = _unpack_head(path, head)
    return "table" if head and _is_text(head) and place.suffix.lower() not in SUFFIXES else None


def _explain_unreadable(path: PathLike) -> str:
    """Why no reader accepts the path."""
    place = Path(path)
    if not place.exists():
        return f"{path}: there is no such file; check the path, or write minari:ID for a Minari data set"
    if place.is_dir():
        return (
            f"{path}: is a directory without Minari's data/metadata.json or the {packed.DESCRIPTION} of "
            "packed episodes; give a file, a Minari data set or what vlbm data pack has written"
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
        return f"{path}: is compressed with gzip and damaged, or holds no text; unpack it first"
    if head.startswith(b"PK\x03\x04"):
        return f"{path}: is a zip archive without NumPy arrays, not logged episodes; readable are {KINDS}"
    if head.startswith(b"\x93NUMPY"):
        return f"{path}: is a single NumPy array without a name; save all fields together with numpy.savez"
    return f"{path}: is in no known format; readable are {KINDS}"


def _read_head(path: PathLike) -> bytes:
    with limits.open_regular(path) as file:
        return file.read(HEAD)


def _unpack_head(path: PathLike, head: bytes) -> bytes:
    """What a compressed file begins with; the head itself where nothing is compressed."""
    if not head.startswith(compressed.MAGIC):
        return head
    try:
        return compressed.read_head(path, HEAD)
    except InputError:
        return head


def _has_arrays(path: Path) -> bool:
    try:
        with limits.open_regular(path) as file, zipfile.ZipFile(file) as archive:
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
    # Blanks are stripped first: patterns that try all ways to share them out would take for ever.
    names, cells = ([cell.strip() for cell in line.split(separator)] for line in lines[:2])
    plausible = all(re.fullmatch(r'"?[\w .:/+\[\]()-]*"?', cell) for cell in names + cells)
    numbers = any(re.fullmatch(r'"?[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?"?', cell) for cell in cells)
    return len(names) >= 3 and len(names) == len(cells) and plausible and numbers
