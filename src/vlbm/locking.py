"""Locks on files and folders, which the system drops when their process ends, however it ends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

try:
    import fcntl
except ImportError:  # Windows has no such locks: nothing is swept there, and nobody is kept out
    fcntl = None  # type: ignore[assignment]


def lock(descriptor: int) -> bool | None:
    """Lock an open file or folder: False if it is locked already, None where locks are unknown."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # some network file systems
        return None
    return True


@contextmanager
def lock_if_free(path: str | os.PathLike[str]) -> Iterator[bool]:
    """Lock a file or folder as long as the context lasts, if it is certain that nobody else has it."""
    if fcntl is None:
        yield False
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        yield lock(descriptor) is True
    finally:
        os.close(descriptor)
