"""Perceptron policies as named arrays: the layout of DOPE, read from and written to .npz and .safetensors."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import safetensors.numpy

from vlbm.errors import InputError, first_line
from vlbm.policies.archives import read_array, read_whole, unpack
from vlbm.policies.mlp import Layer, MLPPolicy
from vlbm.storage import write_atomically

# The layout: fc0/weight [out, in], fc0/bias, fc1/..., last_fc/..., last_fc_log_std/..., two texts, and
# of these settings those that are not at their default.
TEXTS = ("nonlinearity", "output_distribution")
SETTINGS = {
    "action_scale": 1.0,
    "action_offset": 0.0,
    "action_low": -np.inf,
    "action_high": np.inf,
    "log_std_min": -np.inf,
    "log_std_max": np.inf,
    "exploration": 0.0,
}
SCALARS = ("log_std_min", "log_std_max", "exploration")


def policy_from_tensors(tensors: Mapping[str, Any], *, source: str) -> MLPPolicy:
    """A policy from named arrays; errors name the file and the array."""
    unread = {name: value for name, value in tensors.items() if name not in TEXTS}
    nonlinearity, distribution = (_read_text(tensors, name, source) for name in TEXTS)

    def layer(name: str, size: int | None) -> Layer:
        weight = _take_array(unread, f"{name}/weight", source)
        if weight.ndim != 2 or (size is not None and weight.shape[1] != size):
            wanted = "any" if size is None else size
            raise InputError(f"{source}: '{name}/weight' has shape {weight.shape}, expected (any, {wanted})")
        bias = _take_array(unread, f"{name}/bias", source)
        if bias.shape != weight.shape[:1]:
            raise InputError(f"{source}: '{name}/bias' has shape {bias.shape}, expected {weight.shape[:1]}")
        return Layer(jnp.asarray(weight), jnp.asarray(bias))

    hidden: list[Layer] = []
    while f"fc{len(hidden)}/weight" in unread:
        hidden.append(layer(f"fc{len(hidden)}", hidden[-1].bias.shape[0] if hidden else None))
    features = hidden[-1].bias.shape[0] if hidden else None
    head = layer("last_fc", features)
    log_std_head = None
    if any(name.startswith("last_fc_log_std/") for name in unread):
        log_std_head = layer("last_fc_log_std", features)
        if log_std_head.weight.shape != head.weight.shape:
            raise InputError(
                f"{source}: 'last_fc_log_std/weight' has shape {log_std_head.weight.shape}, "
                f"'last_fc/weight' {head.weight.shape}; they must agree"
            )
    settings = {
        name: _take_setting(unread, name, head.bias.shape[0], source) for name in SETTINGS if name in unread
    }
    remarks = sorted(name for name, value in unread.items() if np.ndim(value) == 0)
    if remarks:
        warnings.warn(f"{source}: {', '.join(remarks)} are no weights and were left aside", stacklevel=2)
    unread = {name: value for name, value in unread.items() if name not in remarks}
    if unread:
        # An unknown array could change the actions, such as a normalisation.
        raise InputError(f"{source}: '{min(unread)}' is not part of the layout of policy weights")
    try:
        return MLPPolicy(
            hidden, head, log_std_head, nonlinearity=nonlinearity, distribution=distribution, **settings
        )
    except InputError as error:
        raise InputError(f"{source}: {error}") from error


def policy_to_tensors(policy: MLPPolicy) -> dict[str, np.ndarray]:
    """The arrays of a policy, without the two texts."""
    layers = {f"fc{index}": layer for index, layer in enumerate(policy.hidden)} | {"last_fc": policy.head}
    if policy.log_std_head is not None:
        layers["last_fc_log_std"] = policy.log_std_head
    tensors: dict[str, np.ndarray] = {}
    for name, layer in layers.items():
        tensors |= {f"{name}/weight": np.asarray(layer.weight), f"{name}/bias": np.asarray(layer.bias)}
    for name, default in SETTINGS.items():
        value = np.asarray(getattr(policy, name))
        if np.any(value != default):
            tensors[name] = value
    return tensors


def read_npz(path: Path) -> MLPPolicy:
    try:
        tensors = {
            name.removesuffix(".npy"): read_array(content)
            for name, content in unpack(path).items()
            if name.endswith(".npy")
        }
    except InputError:
        raise
    except Exception as error:  # a damaged archive can raise anything
        raise InputError(f"{path}: not a readable .npz of plain arrays ({first_line(error)})") from error
    return policy_from_tensors(tensors, source=str(path))


def read_safetensors(path: Path) -> MLPPolicy:
    content = read_whole(path)
    try:
        # Its sizes are checked against the file's own before they are believed.
        tensors: dict[str, Any] = dict(_read_metadata(content))
        tensors |= safetensors.numpy.load(content)
    except Exception as error:  # it has no numbers of some types, and says so in its own ways
        raise InputError(f"{path}: not a readable .safetensors file ({first_line(error)})") from error
    # Other writers put notes of their own into the metadata ('format', for one): they are not arrays.
    tensors = {name: value for name, value in tensors.items() if name in TEXTS or not isinstance(value, str)}
    return policy_from_tensors(tensors, source=str(path))


def save_policy(policy: MLPPolicy, path: str | os.PathLike[str]) -> None:
    """Write a policy as .safetensors or .npz, whichever the path ends in.

    Args:
        policy: An MLP policy, such as one read from a file of weights or a Stable-Baselines3 zip.
        path: A file's name that ends in .safetensors or .npz.
    """
    target = Path(path).expanduser()
    if not isinstance(policy, MLPPolicy):
        raise InputError(f"{target}: only an MLPPolicy can be saved, not a {type(policy).__name__}")
    tensors = policy_to_tensors(policy)
    texts = dict(zip(TEXTS, (policy.nonlinearity, policy.distribution), strict=True))
    if target.suffix == ".safetensors":
        content = safetensors.numpy.save(
            {k: np.ascontiguousarray(v) for k, v in tensors.items()}, metadata=texts
        )
        write_atomically(target, lambda temporary: temporary.write_bytes(content))
    elif target.suffix == ".npz":
        arrays: dict[str, Any] = {**tensors, **{name: np.array(text) for name, text in texts.items()}}
        write_atomically(target, lambda temporary: np.savez(temporary, **arrays))
    else:
        raise InputError(f"{target}: policies are saved as .safetensors or .npz")


def _read_metadata(content: bytes) -> dict[str, str]:
    size = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + size]).get("__metadata__") or {}


def _read_text(tensors: Mapping[str, Any], name: str, source: str) -> str:
    if name not in tensors:
        raise InputError(f"{source}: '{name}' is missing; this is not a file of policy weights")
    value = tensors[name]
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value.item()
    if isinstance(value, bytes):  # Python 2 wrote its texts so
        value = value.decode("latin1")
    if not isinstance(value, str):
        raise InputError(f"{source}: '{name}' is not a text")
    return value


def _take_array(unread: dict[str, Any], name: str, source: str) -> np.ndarray:
    if name not in unread:
        raise InputError(f"{source}: '{name}' is missing{_list_names(unread)}")
    value = np.asarray(unread.pop(name))
    if value.dtype.kind not in "fiu":
        raise InputError(f"{source}: '{name}' does not hold numbers but {value.dtype}")
    if value.size == 0:
        raise InputError(f"{source}: '{name}' is empty, of shape {value.shape}")
    with np.errstate(over="ignore", invalid="ignore"):  # what single precision cannot hold is infinite
        value = value.astype(np.float32)
    if name in SETTINGS:
        return value
    if not np.isfinite(value).all():
        raise InputError(f"{source}: '{name}' holds values that are not finite")
    return value


def _take_setting(unread: dict[str, Any], name: str, size: int, source: str) -> np.ndarray:
    value = _take_array(unread, name, source)
    allowed = [(), (1,)] if name in SCALARS else [(), (1,), (size,)]
    if value.shape not in allowed:
        raise InputError(f"{source}: '{name}' has shape {value.shape}, expected one of {allowed}")
    usable = ~np.isnan(value)
    if name == "action_scale":
        usable = np.isfinite(value) & (value != 0)
    if name == "exploration":
        usable = (value >= 0) & (value <= 1)
    if not usable.all():
        raise InputError(f"{source}: '{name}' holds a value that cannot be used")
    return value.reshape(()) if name in SCALARS else value


def _list_names(names: Iterable[str]) -> str:
    listed = sorted(names)
    return f"; the file has {', '.join(listed[:12])}{', ...' if len(listed) > 12 else ''}" if listed else ""
