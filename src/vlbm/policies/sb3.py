"""Policies saved by Stable-Baselines3, rebuilt from their tensors without unpickling the model.

Read are the perceptron policies of PPO, A2C, SAC, TD3, DDPG and DQN. A `VecNormalize` around the
training environment is saved elsewhere by Stable-Baselines3 and is not part of the policy.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from vlbm.errors import InputError, first_line, require
from vlbm.policies.archives import pack_again, unpack
from vlbm.policies.mlp import MLPPolicy
from vlbm.policies.pickles import check_storages
from vlbm.policies.weights import policy_from_tensors

SUPPORTED = "supported are 'MlpPolicy' models of PPO, A2C, SAC, TD3, DDPG and DQN without gSDE"
NONLINEARITIES = {"ReLU": "relu", "Tanh": "tanh", "ELU": "elu", "LeakyReLU": "leaky_relu", "SiLU": "silu"}

# What Stable-Baselines3 clips SAC's log-std to; constants of its code, not part of the file.
SAC_LOG_STD = {"log_std_min": np.float32(-20.0), "log_std_max": np.float32(2.0)}


def read_sb3(path: Path) -> MLPPolicy:
    """Rebuild the acting network of a saved model; value networks and optimisers are ignored."""
    torch = require("torch", extra="torch", purpose="Reading a Stable-Baselines3 model")
    try:
        members = unpack(path)
        data = json.loads(members["data"])
        weights = unpack(path, members["policy.pth"])
        check_storages(weights)
        # `weights_only` admits tensors and nothing that runs.
        state = torch.load(pack_again(weights), map_location="cpu", weights_only=True)
        # A tensor with a stride of 0 can be of any size, and many can share what is stored once.
        if sum(tensor.nbytes for tensor in state.values()) > 4 * len(members["policy.pth"]):
            raise ValueError("its tensors claim more numbers than it holds")
        arrays = {name: tensor.numpy() for name, tensor in state.items()}
    except InputError:
        raise
    except Exception as error:  # zipfile, json and torch each have errors of their own
        raise InputError(f"{path}: not a readable Stable-Baselines3 model ({first_line(error)})") from error
    try:
        return policy_from_tensors(_convert(data, arrays), source=str(path))
    except KeyError as error:
        raise InputError(f"{path}: the model lacks {error}; {SUPPORTED}") from error
    except _UnsupportedError as error:
        raise InputError(f"{path}: {first_line(error)}; {SUPPORTED}") from error
    except InputError:
        raise
    except Exception as error:  # its JSON can hold anything
        raise InputError(
            f"{path}: its data are not laid out as expected ({first_line(error)}); {SUPPORTED}"
        ) from error


class _UnsupportedError(Exception):
    """What about the model cannot be read."""


def _convert(data: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The model in the layout of policy weights."""
    _check_kind(data, arrays)
    actions = data["action_space"]
    if "actor.latent_pi.0.weight" in arrays or "actor.log_std.weight" in arrays:
        layers = _read_linear_layers(arrays, "actor.latent_pi.") + _read_linear_layers(arrays, "actor.mu.")
        spread = (arrays["actor.log_std.weight"], arrays["actor.log_std.bias"])
        return _add_squashing(_to_layout(layers, data, default="relu", spread=spread), actions) | SAC_LOG_STD
    if "actor.mu.0.weight" in arrays:
        return _add_squashing(
            _to_layout(_read_linear_layers(arrays, "actor.mu."), data, default="relu"), actions
        )
    if "q_net.q_net.0.weight" in arrays:
        tensors = _to_layout(_read_linear_layers(arrays, "q_net.q_net."), data, default="relu")
        tensors["output_distribution"] = "greedy"
        tensors["exploration"] = np.float32(data["exploration_rate"])
    elif "action_net.weight" in arrays:
        # Before version 1.8 the policy and the value could share their first layers.
        layers = [
            layer
            for part in ("mlp_extractor.shared_net.", "mlp_extractor.policy_net.", "action_net.")
            for layer in _read_linear_layers(arrays, part)
        ]
        if "Box" in actions[":type:"]:
            return _to_clipped_gaussian(layers, arrays["log_std"], data)
        tensors = _to_layout(layers, data, default="tanh")
        tensors["output_distribution"] = "categorical"
    else:
        raise _UnsupportedError("its tensors belong to no algorithm that is read here")
    if "Discrete'" not in actions[":type:"] or "MultiDiscrete" in actions[":type:"]:
        raise _UnsupportedError(f"its actions are {actions[':type:']}")
    if int(actions.get("start", 0)) != 0:
        raise _UnsupportedError(f"its action ids start at {actions['start']}, not at 0")
    return tensors


def _check_kind(data: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    module = data["policy_class"]["__module__"]
    if not module.startswith("stable_baselines3."):
        # A class of the user's own may do anything with the same tensors.
        raise _UnsupportedError(f"its policy class comes from '{module}'")
    observations = data["observation_space"]
    if "Box'" not in observations[":type:"]:
        raise _UnsupportedError(f"its observations are {observations[':type:']}")
    image = observations.get("dtype") == "uint8" and len(observations["_shape"]) == 3
    if image or any("features_extractor." in name for name in arrays):
        raise _UnsupportedError("it looks at images or has a feature extractor of its own")
    extractor = str((data.get("policy_kwargs") or {}).get("features_extractor_class", "FlattenExtractor"))
    if "FlattenExtractor" not in extractor:
        raise _UnsupportedError(f"it has the feature extractor {extractor}")
    if data.get("use_sde"):
        raise _UnsupportedError("it explores with gSDE")


def _read_linear_layers(arrays: Mapping[str, np.ndarray], prefix: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """Weights and biases under a prefix, in the order of the network."""
    found = {name.removeprefix(prefix).rpartition(".")[0] for name in arrays if name.startswith(prefix)}
    if not all(position.isdecimal() or position == "" for position in found):
        raise _UnsupportedError(f"'{prefix.rstrip('.')}' is not a plain sequence of layers")
    names = [
        prefix + (f"{position}." if position else "")
        for position in sorted(found, key=lambda position: int(position or 0))
    ]
    layers = [(arrays[f"{name}weight"], arrays[f"{name}bias"]) for name in names]
    if any(weight.ndim != 2 for weight, _ in layers):
        raise _UnsupportedError(f"'{prefix.rstrip('.')}' has layers that are not linear")
    return layers


def _to_layout(
    layers: list[tuple[np.ndarray, np.ndarray]],
    data: Mapping[str, Any],
    *,
    default: str,
    spread: tuple[np.ndarray, np.ndarray] | None = None,
) -> dict[str, Any]:
    tensors: dict[str, Any] = {"nonlinearity": _read_nonlinearity(data, default)}
    names = [*(f"fc{index}" for index in range(len(layers) - 1)), "last_fc"]
    if spread is not None:
        names, layers = [*names, "last_fc_log_std"], [*layers, spread]
    for name, (weight, bias) in zip(names, layers, strict=True):
        tensors |= {f"{name}/weight": weight, f"{name}/bias": bias}
    return tensors


def _read_nonlinearity(data: Mapping[str, Any], default: str) -> str:
    """The file prints the class of the activation where it is not the algorithm's default."""
    printed = (data.get("policy_kwargs") or {}).get("activation_fn")
    if printed is None:
        return default
    name = re.sub(r"[^\w.]", " ", str(printed)).split()[-1].rpartition(".")[2]
    if name not in NONLINEARITIES:
        raise _UnsupportedError(f"its activation {printed} is not among {', '.join(NONLINEARITIES)}")
    return NONLINEARITIES[name]


def _add_squashing(tensors: dict[str, Any], actions: Mapping[str, Any]) -> dict[str, Any]:
    """SAC, TD3 and DDPG act in [-1, 1], which stands for the bounds of the action space."""
    low, high = _read_bounds(actions)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise _UnsupportedError("its actions have no bounds to scale to")
    scaling = {"action_scale": (high - low) / 2, "action_offset": (high + low) / 2}
    return tensors | scaling | {"output_distribution": "tanh_gaussian"}


def _to_clipped_gaussian(
    layers: list[tuple[np.ndarray, np.ndarray]], log_std: np.ndarray, data: Mapping[str, Any]
) -> dict[str, Any]:
    """PPO and A2C have one spread for all observations, and clip what they draw to the bounds."""
    low, high = _read_bounds(data["action_space"])
    spread = (np.zeros_like(layers[-1][0]), log_std)
    tensors = _to_layout(layers, data, default="tanh", spread=spread)
    return tensors | {"output_distribution": "gaussian", "action_low": low, "action_high": high}


def _read_bounds(actions: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """The bounds of the action space, which the file prints as text beside their pickle."""
    if "Box'" not in actions[":type:"] or len(actions["_shape"]) != 1:
        raise _UnsupportedError(f"its actions are {actions[':type:']} of shape {actions.get('_shape')}")
    try:
        low, high = (
            np.array([float(number) for number in re.sub(r"[\[\],]", " ", actions[name]).split()])
            for name in ("low", "high")
        )
    except ValueError as error:
        raise _UnsupportedError(f"the bounds of its actions cannot be read ({error})") from error
    if low.shape != high.shape or list(low.shape) != list(actions["_shape"]):
        raise _UnsupportedError("the bounds of its actions are not printed in full")
    return low, high
