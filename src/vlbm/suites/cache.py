"""The user's cache of simulated data sets, with a checksum beside each."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from vlbm.data.episodes import Episodes
from vlbm.data.readers import load
from vlbm.data.readers.npz import save_npz
from vlbm.storage import cache_directory, write_text
from vlbm.writing import sweep


def data_path(name: str, *, steps: int, seed: int) -> Path:
    """Where a data set of this name and size is kept."""
    return cache_directory() / "data" / f"{name.replace('/', '_')}_{steps}_{seed}.npz"


def checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_cached(path: Path, recipe: Mapping[str, Any]) -> bool:
    """Whether the file exists, is undamaged and was made by this recipe."""
    try:
        label = json.loads(_label_path(path).read_text(encoding="utf-8"))
        return label == {"recipe": dict(recipe), "sha256": checksum(path)}
    except (OSError, ValueError):
        return False


def load_or_make(path: Path, recipe: Mapping[str, Any], make: Callable[[], Episodes]) -> Episodes:
    """The cached data set; made if it is missing, damaged or of another recipe."""
    sweep(path.parent)
    if not is_cached(path, recipe):
        store(path, recipe, make())
    return load(path)


def store(path: Path, recipe: Mapping[str, Any], episodes: Episodes) -> None:
    """Write the data, then the label: data without a matching label count as unfinished."""
    _label_path(path).unlink(missing_ok=True)
    save_npz(episodes, path)
    label = {"recipe": dict(recipe), "sha256": checksum(path)}
    write_text(_label_path(path), json.dumps(label, indent=2) + "\n")


def _label_path(path: Path) -> Path:
    return path.with_suffix(".json")
