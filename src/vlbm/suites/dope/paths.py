"""Locating the files of DOPE and D4RL on this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from vlbm.errors import InputError
from vlbm.progress import Progress, silent
from vlbm.storage import cache_directory
from vlbm.suites.dope.catalogue import Remote
from vlbm.suites.dope.download import fetch, is_downloaded, verify

VARIABLE = "VLBM_DOPE"


@dataclass(frozen=True)
class SearchPath:
    """The directories that are searched: those the user named, then the downloads."""

    named: tuple[Path, ...]
    downloads: Path

    def find(self, remote: Remote) -> Path | None:
        """The first file under any of its names; reads nothing."""
        for directory in self.named:
            for path in (remote.path, *remote.also):
                if (directory / path).is_file():
                    return directory / path
        downloaded = self.downloads / remote.path
        return downloaded if is_downloaded(downloaded) else None

    def has_all(self, remotes: Iterable[Remote]) -> bool:
        """Whether all files are found."""
        return all(self.find(remote) is not None for remote in remotes)

    def get(
        self,
        remote: Remote,
        *,
        download: bool,
        readable: Callable[[Path], object],
        progress: Progress = silent,
    ) -> Path:
        """The file, downloaded with `download`, or an error with its address and target path."""
        found, downloaded = self.find(remote), self.downloads / remote.path
        if found not in (None, downloaded):
            return found
        if download:
            return fetch(remote.address, downloaded, readable=readable, progress=progress)
        if found is not None:
            verify(found, remote.address)
            return found
        raise InputError(self._explain_missing(remote))

    def _explain_missing(self, remote: Remote) -> str:
        file = remote.path.rpartition("/")[2]
        looked = " and ".join(str(directory) for directory in (*self.named, self.downloads))
        advice = (
            f"put it at {self.named[0] / remote.path}"
            if self.named
            else f"put it at {remote.path} in a directory of yours that the environment variable "
            f"{VARIABLE} names"
        )
        return (
            f"{file}: is not in {looked}; get it from {remote.address} and {advice}, or load it "
            "with download=True"
        )


def make_search_path(*given: str | os.PathLike[str] | None) -> SearchPath:
    """Directories the caller gave, then the one that VLBM_DOPE names; downloads come last."""
    named = [Path(directory).expanduser() for directory in given if directory is not None]
    for directory in named:
        if not directory.is_dir():
            raise InputError(f"{directory}: is no directory; give the one that holds the files of DOPE")
    default = os.environ.get(VARIABLE)
    if default:
        named.append(Path(default).expanduser())
        if not named[-1].is_dir():
            raise InputError(
                f"{default}: is no directory, but {VARIABLE} names it; change or unset {VARIABLE}"
            )
    return SearchPath(tuple(dict.fromkeys(named)), cache_directory() / "dope")
