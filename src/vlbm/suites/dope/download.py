"""Downloads, with checksums recorded at the first download."""

# Neither D4RL nor DOPE publishes checksums, so the first download is trusted: its SHA-256 is written
# beside the file, in the form that `sha256sum --check` reads, and later downloads must match it.

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from vlbm.errors import InputError, require
from vlbm.progress import Progress, Report, silent
from vlbm.storage import write_text
from vlbm.suites.cache import checksum
from vlbm.writing import unfinished_folder

TIMEOUT = 30.0  # seconds without an answer


def fetch(
    address: str, target: Path, *, readable: Callable[[Path], object], progress: Progress = silent
) -> Path:
    """Download to `target`, unless it is there and matches its record; interrupted downloads leave nothing.

    `readable` raises on files that are not what was asked for, such as a web page instead of
    data: those are neither kept nor recorded.
    """
    recorded = recorded_checksum(target)
    if target.is_file() and checksum(target) == recorded:
        return target
    pooch = require("pooch", extra="download", purpose=f"Downloading {address}")
    # In the same folder: a rename is atomic only within a file system.
    with unfinished_folder(target) as staging:
        arrived = staging / target.name
        with ExitStack() as stack:
            bar = _Bar(lambda total: stack.enter_context(progress.task(total=total, title=target.name)))
            try:
                pooch.HTTPDownloader(timeout=TIMEOUT, progressbar=bar)(address, str(arrived), None)
            except OSError as error:  # base class of all errors of requests
                raise InputError(
                    f"{address}: cannot be downloaded ({error}); try again, or fetch it by other means "
                    f"and put it into the directory that VLBM_DOPE names"
                ) from error
        readable(arrived)
        found = checksum(arrived)
        if recorded not in (None, found):
            raise InputError(
                f"{address}: is not what was first downloaded from there (SHA-256 {found}, recorded "
                f"{recorded}); to accept the new file, delete {_record_path(target)}"
            )
        # The record is written first: a file without one counts as unfinished.
        write_text(_record_path(target), f"{found}  {target.name}\n")
        arrived.replace(target)
    return target


def is_downloaded(target: Path) -> bool:
    """Whether a download is there with its record; the contents are not checked."""
    return target.is_file() and recorded_checksum(target) is not None


def verify(target: Path, address: str) -> None:
    """Refuse a downloaded file that is no longer what was downloaded."""
    recorded, found = recorded_checksum(target), checksum(target)
    if found != recorded:
        raise InputError(
            f"{target}: is damaged (SHA-256 {found}, but {recorded} when it was downloaded); "
            f"load with download=True to fetch it again from {address}"
        )


def recorded_checksum(target: Path) -> str | None:
    try:
        return _record_path(target).read_text(encoding="utf-8").split()[0]
    except (OSError, IndexError):
        return None


def _record_path(target: Path) -> Path:
    return target.with_name(f"{target.name}.sha256")


class _Bar:
    """The progress bar interface of pooch: the total is set first, then updated by chunks."""

    def __init__(self, begin: Callable[[int], Report]):
        self._begin = begin
        self._report: Report | None = None
        self._done = 0

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "total":
            self._report = self._begin(value)
        else:
            super().__setattr__(name, value)

    def update(self, size: int) -> None:
        self._done += size
        if self._report is not None:
            self._report(self._done, None)

    def reset(self) -> None:
        self._done = 0

    def close(self) -> None:
        pass
