"""Files and folders appear whole or not at all; standard output, pipes and devices are written through."""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from vlbm.errors import OutputError
from vlbm.locking import lock, lock_if_free

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # the disk does not take more
STANDARD_OUTPUT = Path("-")
# What a write that was killed leaves behind: .NAME.RANDOM.vlbm-unfinished.ENDING
UNFINISHED = re.compile(r"\..+\.\w+\.vlbm-unfinished(\.\w+)?")
LONGEST_NAME = 100  # of the name within the temporary one, which file systems bound


def is_standard_output(path: str | os.PathLike[str]) -> bool:
    """Whether `-` is meant, or a path such as /dev/stdout that leads to the same place."""
    if Path(path) == STANDARD_OUTPUT:
        return True
    try:
        return os.path.samestat(os.stat(path), os.fstat(sys.stdout.fileno()))
    except (OSError, ValueError, AttributeError):  # there is no such file, or no standard output
        return False


def is_written_through(path: str | os.PathLike[str]) -> bool:
    """Whether what is written goes on to a program or a device, so that no file can take its place."""
    if is_standard_output(path):
        return True
    try:
        # A descriptor of this process, such as /dev/fd/3, may be a file, but not one to be replaced.
        descriptor = re.match(r"/dev/(fd/|std)|/proc/", os.path.abspath(path)) is not None
        return descriptor or not (stat.S_ISREG(mode := os.stat(path).st_mode) or stat.S_ISDIR(mode))
    except OSError:
        return False


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file beside `path`, then rename it; behind a link, beside the linked file.

    What is no file is not replaced: it is written through, once `write` has finished.
    """
    if is_written_through(path):
        with tempfile.TemporaryDirectory(prefix="vlbm-") as folder, _name_failures(path):
            whole = Path(folder) / f"whole{path.suffix}"
            write(whole)
            _write_through(path, whole.read_bytes())
        return
    target = Path(os.path.realpath(path))
    with _name_failures(path), unfinished_file(target) as temporary:
        write(temporary)
        # Temporary files are private; give them the usual permissions.
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        os.replace(temporary, target)


def write_text(path: Path, text: str) -> None:
    if is_written_through(path):
        with _name_failures(path):
            _write_through(path, text.encode())
    else:
        write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


@contextmanager
def _name_failures(path: Path) -> Iterator[None]:
    """One error for whatever keeps a file from being written, such as a disk that is full."""
    try:
        yield
    except (BrokenPipeError, OutputError):  # whoever read it has had enough; an inner write has said it
        raise
    except OSError as error:
        reason = error.strerror or error
        raise OutputError(
            f"{path}: cannot be written ({reason}); make room there, or give another place"
        ) from error


@contextmanager
def unfinished_file(target: Path) -> Iterator[Path]:
    """A temporary file beside `target`, of the same ending; removed unless it was renamed."""
    target.parent.mkdir(parents=True, exist_ok=True)
    sweep(target.parent, target.name)
    while True:
        descriptor, name = tempfile.mkstemp(**_name_temporary(target, target.suffix))
        temporary = Path(name)
        try:
            # Between making and locking it another process may have swept it.
            if lock(descriptor) is not False and temporary.exists():
                yield temporary
                return
        finally:
            temporary.unlink(missing_ok=True)
            os.close(descriptor)


@contextmanager
def unfinished_folder(target: Path) -> Iterator[Path]:
    """The same for a folder."""
    with _name_failures(target):
        yield from _hold_unfinished_folder(target)


def _hold_unfinished_folder(target: Path) -> Iterator[Path]:
    target.parent.mkdir(parents=True, exist_ok=True)
    sweep(target.parent, target.name)
    while True:
        folder = Path(tempfile.mkdtemp(**_name_temporary(target, "")))
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            if lock(descriptor) is not False and folder.exists():
                umask = os.umask(0)
                os.umask(umask)
                folder.chmod(0o777 & ~umask)
                yield folder
                return
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(descriptor)


def sweep(directory: Path, name: str = "") -> None:
    """Remove what killed writes left in a directory: all of it, or what was to become `name`.

    Whoever is still writing holds a lock on its temporary file, so that it is left alone.
    """
    try:
        entries = list(os.scandir(directory))
    except OSError:
        return
    for entry in entries:
        if UNFINISHED.fullmatch(entry.name) and (not name or entry.name.startswith(_prefix(name))):
            # The lock is kept while removing, so that nobody begins to write in between.
            with suppress(OSError), lock_if_free(entry.path) as free:
                if free and entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path)
                elif free:
                    os.unlink(entry.path)


def _name_temporary(target: Path, ending: str) -> dict[str, Any]:
    suffix = f".vlbm-unfinished{ending}"
    return {"dir": target.parent, "prefix": _prefix(target.name), "suffix": suffix}


def _prefix(name: str) -> str:
    return f".{name[:LONGEST_NAME]}."


def _write_through(path: Path, content: bytes) -> None:
    if not is_standard_output(path):
        # Appending truncates nothing, and where there is nothing to append to it does no harm.
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        return
    binary = getattr(sys.stdout, "buffer", None)
    sys.stdout.flush()
    if binary is None:  # a notebook's
        sys.stdout.write(content.decode())
    else:
        binary.write(content)
    sys.stdout.flush()
