"""Trees of arrays on disk: one safetensors file with JSON in its header, written atomically."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import equinox as eqx
import jax
import numpy as np

from vlbm.errors import InputError

Tree = TypeVar("Tree")


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file beside `path`, then rename it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=path.suffix)
    os.close(descriptor)
    temporary = Path(name)
    try:
        write(temporary)
        # mkstemp makes private files; give them the usual permissions.
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def save_tree(path: Path, tree: Any, *, information: dict[str, Any]) -> None:
    """The tree's arrays, named by their path in it, and `information` as JSON."""
    save_arrays(path, _leaves_by_name(tree), information=information)


def save_arrays(path: Path, arrays: Mapping[str, np.ndarray], *, information: dict[str, Any]) -> None:
    """Arrays by name, and `information` as JSON."""
    from safetensors.numpy import save_file

    whole = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    metadata = {"vlbm": json.dumps(information)}
    write_atomically(path, lambda temporary: save_file(whole, temporary, metadata=metadata))


def read_information(path: Path) -> dict[str, Any]:
    """The JSON that was saved with a tree."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise InputError(f"{path}: there is no such file")
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
    except SafetensorError as error:
        raise InputError(f"{path}: not a whole safetensors file ({error})") from None
    if "vlbm" not in metadata:
        raise InputError(f"{path}: not written by vlbm (its header has no entry 'vlbm')")
    return json.loads(metadata["vlbm"])


def load_arrays(path: Path) -> dict[str, np.ndarray]:
    """All saved arrays by name."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path}: cannot be read ({error})") from None


def load_tree(path: Path, like: Tree) -> Tree:
    """The saved arrays in the structure of `like`, whose values are ignored."""
    arrays = load_arrays(path)
    wanted = _leaves_by_name(like)
    for name, leaf in wanted.items():
        if name not in arrays:
            raise InputError(f"{path}: tensor '{name}' is missing; the file belongs to other settings")
        if arrays[name].shape != np.shape(leaf):
            raise InputError(
                f"{path}: tensor '{name}' has shape {arrays[name].shape}, expected {np.shape(leaf)}; "
                "the file belongs to other settings"
            )
    leaves, structure = jax.tree.flatten(eqx.filter(like, eqx.is_array_like))
    values = [
        arrays[name].item() if isinstance(leaf, int | float | bool) else arrays[name]
        for name, leaf in zip(wanted, leaves, strict=True)
    ]
    return eqx.combine(jax.tree.unflatten(structure, values), like)


def check_identity(path: Path, saved: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Refuse to resume from other settings, data or seeds."""
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
    paths, _ = jax.tree_util.tree_flatten_with_path(eqx.filter(tree, eqx.is_array_like))
    return {jax.tree_util.keystr(path).lstrip("."): np.asarray(leaf) for path, leaf in paths}


def cache_directory() -> Path:
    """The directory named by VLBM_CACHE, or `vlbm` in the user's cache directory."""
    return Path(os.environ.get("VLBM_CACHE") or _user_cache() / "vlbm")


def _user_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
