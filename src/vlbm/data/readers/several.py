"""Several files as one log: which files are meant, and whether they belong together."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from vlbm.data.episodes import Episodes, concatenate
from vlbm.data.readers.check import Path as PathLike
from vlbm.errors import InputError


def expand(paths: PathLike | Sequence[PathLike]) -> list[PathLike]:
    """Every path that is meant, patterns such as `logs/*.csv` in alphabetical order."""
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    found = [path for one in given for path in (_match(str(one)) if is_pattern(one) else [one])]
    if not found:
        raise InputError("load: no files were given")
    twice = next((path for path in found if found.count(path) > 1), None) if len(given) > 1 else None
    if twice is not None:
        raise InputError(f"{twice}: is given twice; give every file once")
    return found


def is_pattern(path: PathLike) -> bool:
    text = os.fspath(path)
    return glob.has_magic(text) and not text.startswith("minari:") and not Path(text).exists()


def join(paths: Sequence[PathLike], parts: Iterable[Episodes]) -> Episodes:
    """All episodes of several files; those of different files are different episodes, whatever their ids."""
    alike = list(check_alike(paths, parts))
    joined = replace(concatenate(alike), notes=_gather_notes(alike))
    without = [path for path, part in zip(paths, alike, strict=True) if part.log_prob is None]
    if not without or len(without) == len(alike):
        return joined
    note = f"log-probabilities are left out, because {without[0]} has none"
    return replace(joined, notes=(*joined.notes, note))


def check_alike(paths: Sequence[PathLike], parts: Iterable[Episodes]) -> Iterator[Episodes]:
    """The parts as they are, if all describe the same observations and actions."""
    first: Episodes | None = None
    for path, part in zip(paths, parts, strict=True):
        first = part if first is None else first
        sizes = () if part.discrete else ("action_size",)
        for name in ("observation_size", "discrete", *sizes, "observation_names", "action_names"):
            mine, others = getattr(part, name), getattr(first, name)
            if mine != others:
                verb = "are" if name.endswith("names") else "is"
                raise InputError(
                    f"{path}: {name.replace('_', ' ')} {verb} {_say(mine)}, but {_say(others)} in "
                    f"{paths[0]}; all files must hold the same columns in the same order"
                )
        yield part


def _gather_notes(parts: Sequence[Episodes]) -> tuple[str, ...]:
    """Notes that differ in nothing but numbers are said once."""
    alike: dict[str, list[str]] = {}
    for part in parts:
        for note in part.notes:
            alike.setdefault(re.sub(r"\d+", "#", note), []).append(note)
    return tuple(
        notes[0] + (f" in one file, and alike in {len(notes) - 1} more" if len(set(notes)) > 1 else "")
        for notes in alike.values()
    )


def _match(pattern: str) -> list[PathLike]:
    found: list[PathLike] = list(sorted(glob.glob(pattern, recursive=True)))
    if not found:
        raise InputError(f"{pattern}: no file has a name like this; check the path")
    return found


def _say(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(value[:8]) + (f" and {len(value) - 8} more" if len(value) > 8 else "")
    return "unknown" if value is None else str(value)
