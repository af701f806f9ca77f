"""Directories that keep runs and models: nothing is overwritten unasked, and one process writes at a time."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path

from vlbm.errors import InputError
from vlbm.limits import open_regular
from vlbm.locking import lock
from vlbm.writing import STANDARD_OUTPUT, sweep

LOCK_FILE = ".vlbm-lock"
RUN_FILE = Path("evidence", "run.json")
# Written beside the files of arrays; on their own they are nothing that a run would mix with.
COMPANIONS = (RUN_FILE, Path("model.json"), Path("estimates.json"))
MOST_HEADER = 100_000_000  # bytes, as safetensors itself has it
# Directories claimed here: what works inside them belongs to the same run.
_claimed: ContextVar[frozenset[Path]] = ContextVar("claimed", default=frozenset())


@contextmanager
def claim_directory(
    directory: str | os.PathLike[str], *, resume: bool = False, overwrite: bool = False
) -> Iterator[None]:
    """Have a directory to oneself, made if it is missing.

    A directory that holds a run or a model is refused, unless that is resumed, or removed with `overwrite`.
    Files that are not ours are never touched. What writes that were killed have left is swept.
    """
    place = Path(os.path.realpath(directory))
    if Path(directory) == STANDARD_OUTPUT:
        raise InputError("-: is standard output, and this is a directory of files; give it a name")
    if resume and overwrite:
        raise InputError(f"{directory}: can be resumed or overwritten, not both; leave one of them out")
    if _claimed.get() & {place, *place.parents}:
        yield
        return
    new = not place.exists()
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = "is a file" if place.exists() else f"cannot be made ({error.strerror})"
        raise InputError(f"{directory}: {reason}; give another directory") from error
    try:
        with _lock_directory(place, directory):
            for folder in _list_folders(place):
                sweep(folder)
            check_unused(directory, resume=resume or overwrite)
            if overwrite:
                _remove_results(place)
            token = _claimed.set(_claimed.get() | {place})
            try:
                yield
            finally:
                _claimed.reset(token)
    finally:
        if new:
            with suppress(OSError):  # nothing was written
                place.rmdir()


def check_unused(directory: str | os.PathLike[str], *, resume: bool) -> None:
    """Refuse a directory that holds a run or a model, unless that is resumed or belongs to this very run."""
    place = Path(os.path.realpath(directory))
    if resume or _claimed.get() & {place, *place.parents}:
        return
    found = _list_results(place)
    if found:
        raise InputError(
            f"{directory}: holds a run or a model already ({found[0].relative_to(place)}); continue it with "
            "resume=True, or give another directory"
        )


def wait_until_free(directory: str | os.PathLike[str], *, seconds: float) -> None:
    """Wait, but not for ever, until no other process has a directory to itself: one that is ending."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            descriptor = os.open(Path(directory) / LOCK_FILE, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:
            return
        try:
            if lock(descriptor) is not False:
                return
        finally:
            os.close(descriptor)
        time.sleep(0.1)


@contextmanager
def _lock_directory(place: Path, given: str | os.PathLike[str]) -> Iterator[None]:
    path = place / LOCK_FILE
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        except OSError as error:
            raise InputError(
                f"{given}: cannot be written to ({error.strerror}); give another directory"
            ) from error
        try:
            if lock(descriptor) is False:
                process = os.read(descriptor, 20).decode(errors="replace")
                raise InputError(
                    f"{given}: another process ({process}) is writing there; wait until it has finished, or "
                    "give another directory"
                )
            # Whoever had the lock before removes the file: then this is the lock of nothing.
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                    os.ftruncate(descriptor, 0)
                    os.write(descriptor, str(os.getpid()).encode())
                    try:
                        yield
                    finally:
                        path.unlink(missing_ok=True)
                    return
        finally:
            os.close(descriptor)


def _list_results(place: Path) -> list[Path]:
    """Files of arrays that this package wrote."""
    folders = _list_folders(place)
    return [path for folder in folders for path in sorted(folder.glob("*.safetensors")) if _is_ours(path)]


def _remove_results(place: Path) -> None:
    found = _list_results(place)
    # What makes a run complete goes first: half a run must not look like one.
    for path in (*(place / name for name in COMPANIONS if found), *found):
        path.unlink(missing_ok=True)
        if path.parent != place:
            with suppress(OSError):  # other files are in it
                path.parent.rmdir()


def _list_folders(place: Path) -> list[Path]:
    """The directory and what is directly in it: a run has no folders in folders."""
    if not place.is_dir():
        return []
    return [place, *sorted(path for path in place.iterdir() if path.is_dir() and not path.is_symlink())]


def _is_ours(path: Path) -> bool:
    """Whether a safetensors file has our entry in its header, which policies, for one, do not have."""
    try:
        with open_regular(path) as file:
            size = int.from_bytes(file.read(8), "little")
            if size > MOST_HEADER:
                return False
            header = json.loads(file.read(size))
        return "vlbm" in header["__metadata__"]
    except (InputError, OSError, ValueError, KeyError, TypeError, RecursionError):
        return False
