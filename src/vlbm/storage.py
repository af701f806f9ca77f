"""Trees of arrays on disk: one safetensors file with JSON in its header, written atomically."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import equinox as eqx
import jax
import numpy as np

from vlbm.errors import InputError, first_line
from vlbm.limits import check_claim, check_regular_file
from vlbm.schema import refuse_damage
from vlbm.writing import write_atomically, write_text

__all__ = [
    "Information",
    "cache_directory",
    "check_identity",
    "check_numbers",
    "load_arrays",
    "load_tree",
    "read_information",
    "save_arrays",
    "save_tree",
    "tensor_shapes",
    "write_atomically",
    "write_text",
]

Tree = TypeVar("Tree")


def save_tree(path: Path, tree: Any, *, information: dict[str, Any]) -> None:
    """The tree's arrays, named by their path in it, and `information` as JSON."""
    save_arrays(path, _leaves_by_name(tree), information=information)


def save_arrays(path: Path, arrays: Mapping[str, np.ndarray], *, information: dict[str, Any]) -> None:
    """Arrays by name, and `information` as JSON."""
    from safetensors.numpy import save

    whole = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    content = save(whole, metadata={"vlbm": json.dumps(information)})
    # Not its own `save_file`, which writes a temporary file under a name that we could not sweep.
    write_atomically(path, lambda temporary: temporary.write_bytes(content))


class Information(dict[str, Any]):
    """What was saved with a tree; an entry that is missing is an error that names the file."""

    def __init__(self, path: Path, entries: dict[str, Any]):
        super().__init__(entries)
        self._path = path

    def __missing__(self, name: str) -> Any:
        raise InputError(
            f"{self._path}: '{name}' is missing; the file is damaged or of another version of vlbm"
        )


def read_information(path: Path) -> dict[str, Any]:
    """The JSON that was saved with a tree."""
    from safetensors import SafetensorError, safe_open

    if not path.exists():
        raise InputError(f"{path}: there is no such file")
    check_regular_file(path)
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path}: not a whole safetensors file ({first_line(error)})") from None
    if "vlbm" not in metadata:
        raise InputError(f"{path}: not written by vlbm (its header has no entry 'vlbm')")
    with refuse_damage(path, "write it again"):
        entries = json.loads(metadata["vlbm"])
        if not isinstance(entries, dict):
            raise ValueError("its entry 'vlbm' is no table")
    return Information(path, entries)


def tensor_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """The shapes of all tensors; the library holds what they take against the size of the file."""
    from safetensors import SafetensorError, safe_open

    check_regular_file(path)
    try:
        with safe_open(path, framework="numpy") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path}: not a whole safetensors file ({first_line(error)})") from None


def load_arrays(path: Path) -> dict[str, np.ndarray]:
    """All saved arrays by name."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    check_regular_file(path)
    check_claim(path, path.stat().st_size, what="its arrays")
    try:
        return load_file(path)
    except (OSError, SafetensorError, TypeError, KeyError, AttributeError) as error:
        raise InputError(f"{path}: cannot be read ({first_line(error)})") from None


def load_tree(path: Path, like: Tree) -> Tree:
    """The saved arrays in the structure of `like`, whose values are ignored.

    `like` may say shapes and types alone; of its NumPy arrays only the shapes count.
    """
    arrays = load_arrays(path)
    wanted = _leaves_by_name(like)
    for name, leaf in wanted.items():
        shape = getattr(leaf, "shape", ())
        if name not in arrays:
            raise InputError(f"{path}: tensor '{name}' is missing; the file belongs to other settings")
        if arrays[name].shape != shape:
            raise InputError(
                f"{path}: tensor '{name}' has shape {arrays[name].shape}, expected {shape}; "
                "the file belongs to other settings"
            )
        if not isinstance(leaf, np.ndarray) and arrays[name].dtype.kind != _kind_of(leaf):
            raise InputError(f"{path}: tensor '{name}' has the wrong type {arrays[name].dtype}")
    leaves, structure = jax.tree.flatten(eqx.filter(like, _is_leaf))
    values = [
        arrays[name].item() if isinstance(leaf, int | float | bool) else arrays[name]
        for name, leaf in zip(wanted, leaves, strict=True)
    ]
    return eqx.combine(jax.tree.unflatten(structure, values), like)


def check_numbers(path: Path, tree: Any) -> None:
    """Refuse a tree with something in it that is not a number."""
    for name, leaf in _leaves_by_name(tree).items():
        values = np.asarray(leaf)
        if values.dtype.kind == "f" and np.isnan(values).any():
            raise InputError(f"{path}: tensor '{name}' holds values that are not numbers")


def check_identity(path: Path, saved: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Refuse to resume from other settings, data or seeds."""
    if not isinstance(saved, dict):
        raise InputError(f"{path}: does not say what it was made of; start without --resume")
    differing = _differences(saved, wanted)
    if differing:
        raise InputError(
            f"{path}: cannot resume, it was made with other {', '.join(differing)}; "
            "give the same settings, data and seed, or start without --resume"
        )


def _differences(saved: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """Names that differ; of groups of settings, the settings themselves."""
    names: list[str] = []
    for name in sorted(wanted.keys() | saved.keys()):
        before, now = saved.get(name), wanted.get(name)
        if before == now:
            continue
        groups = isinstance(before, dict) and isinstance(now, dict)
        inner = _differences(before, now) if groups else [name]  # type: ignore[arg-type]
        names += [part for part in inner if part not in names]
    return names


def _leaves_by_name(tree: Any) -> dict[str, Any]:
    paths, _ = jax.tree_util.tree_flatten_with_path(eqx.filter(tree, _is_leaf))
    return {jax.tree_util.keystr(path).lstrip("."): leaf for path, leaf in paths}


def _is_leaf(leaf: Any) -> bool:
    return eqx.is_array_like(leaf) or isinstance(leaf, jax.ShapeDtypeStruct)


def _kind_of(leaf: Any) -> str:
    return np.dtype(getattr(leaf, "dtype", type(leaf))).kind


def cache_directory() -> Path:
    """The directory named by VLBM_CACHE, or `vlbm` in the user's cache directory."""
    return Path(os.environ.get("VLBM_CACHE") or _user_cache() / "vlbm")


def _user_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
