"""What a file may ask for: only regular files are opened, and sizes they declare are bounded."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import IO, Any

from vlbm.errors import InputError

MAX_BYTES_VARIABLE = "VLBM_MAX_BYTES"

# Deflate cannot shrink anything more than about a thousandfold.
FACTOR = 1000.0
# Less than this hurts nobody, however small the file that declares it.
HARMLESS_BYTES = 1 << 28
UNKNOWN_MEMORY = 1 << 36

Place = str | os.PathLike[str]


def max_bytes() -> int:
    """How many bytes one file may unpack to: what the environment says, or the memory of this machine."""
    given = os.environ.get(MAX_BYTES_VARIABLE)
    if not given:
        return _memory_bytes()
    try:
        limit = int(float(given))
    except (ValueError, OverflowError):
        limit = 0
    if limit < 1:
        raise InputError(
            f"{MAX_BYTES_VARIABLE}={given}: is no number of bytes; give one such as 64e9, or unset it"
        )
    return limit


def check_regular_file(path: Place) -> None:
    """The path, or what it links to, is a file: no folder, and nothing that would wait for a writer."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError) as error:
        raise InputError(_explain_unopened(path, error)) from error
    _refuse_irregular(path, mode)


def check_inside(folder: Place, path: Place) -> None:
    """The path, with all links followed, stays in the folder."""
    place, root = Path(os.path.realpath(path)), Path(os.path.realpath(folder))
    if root not in place.parents:
        raise InputError(f"{path}: leads out of the folder {folder}; put the file itself there, not a link")


def open_regular(path: Place, mode: str = "rb") -> IO[Any]:
    """The file, opened for reading; text is UTF-8."""
    check_regular_file(path)
    # Had the file been replaced since by a FIFO, opening it would wait for ever.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        raise InputError(_explain_unopened(path, error)) from error
    try:
        _refuse_irregular(path, os.fstat(descriptor).st_mode)
        return os.fdopen(descriptor, mode, encoding=None if "b" in mode else "utf-8")
    except BaseException:
        os.close(descriptor)
        raise


def check_claim(
    path: Place,
    claimed_bytes: int,
    *,
    file_bytes: int | None = None,
    factor: float = FACTOR,
    what: str,
    limit: int | None = None,
) -> None:
    """Refuse what a file declares before anything is allocated for it.

    The limit is `max_bytes` unless given. A limit that the user has set is the only one; otherwise a file of
    `file_bytes` may not declare more than `factor` times as much.
    """
    allowed = max_bytes()
    if not os.environ.get(MAX_BYTES_VARIABLE):
        allowed = allowed if limit is None else limit
        if file_bytes is not None:
            allowed = min(allowed, max(int(file_bytes * factor), HARMLESS_BYTES))
    if claimed_bytes > allowed:
        found = f" in a file of {_say_bytes(file_bytes)}" if file_bytes is not None else ""
        raise InputError(
            f"{path}: {what} would take {_say_bytes(claimed_bytes)}{found}, more than the "
            f"{_say_bytes(allowed)} allowed; if the file is sound, set {MAX_BYTES_VARIABLE} to at least "
            f"{claimed_bytes}"
        )


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return UNKNOWN_MEMORY


def _refuse_irregular(path: Place, mode: int) -> None:
    if stat.S_ISREG(mode):
        return
    kinds = {
        stat.S_IFDIR: "folder",
        stat.S_IFIFO: "FIFO",
        stat.S_IFSOCK: "socket",
        stat.S_IFCHR: "device",
        stat.S_IFBLK: "device",
    }
    kind = kinds.get(stat.S_IFMT(mode), "special file")
    raise InputError(f"{path}: is a {kind}, not a file; copy what it holds to a file, and give that")


def _explain_unopened(path: Place, error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return f"{path}: there is no such file; check the path"
    reason = getattr(error, "strerror", None) or str(error)
    return f"{path}: cannot be opened ({reason}); check the path and its permissions"


def _say_bytes(count: int) -> str:
    if count < 1 << 20:
        return f"{count:,} bytes"
    return f"{count / 2**30:,.1f} GiB" if count >= 1 << 30 else f"{count / 2**20:,.1f} MiB"
