"""What the header of a saved model claims, checked before anything is made for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import equinox as eqx
import jax

from vlbm.errors import InputError
from vlbm.schema import check_entries, matches
from vlbm.storage import read_information, tensor_shapes

INFORMATION: dict[str, Any] = {
    "method": str,
    "settings": Mapping[str, Any],
    "shape": Mapping[str, Any],
    "models": int,
    "starts": int,
    "horizon": int,
    "seed": int,
    "data": Mapping[str, Any],
    "seconds": float,
    "notes": tuple[str, ...],
    "histories": tuple[Mapping[str, Any], ...],
}
SHAPE: dict[str, Any] = {"observations": int, "actions": int, "n_actions": int | None, "terminates": bool}
DATA: dict[str, Any] = {"path": str | None, "episodes": int, "steps": int}


def read_model(path: Path, settings_type_of: Callable[[str], type]) -> tuple[dict[str, Any], Any, Any]:
    """The header of a model, its settings, and an empty world that takes no memory.

    The file must hold every number of every world that it claims, before any is made.
    """
    information = read_information(path)
    check_entries(information, INFORMATION)
    check_entries(information["shape"], SHAPE)
    check_entries(information["data"], DATA)
    shape, held = information["shape"], tensor_shapes(path)
    numbers = sum(map(math.prod, held.values()))
    counts = {name: information[name] for name in ("models", "starts", "horizon")}
    counts |= {name: shape[name] for name in ("observations", "actions")}
    counts |= {name: information["data"][name] for name in ("episodes", "steps")}
    if information.get("references") is not None:
        check_entries(information, {"references": int})
        counts["references"] = information["references"]
    for name, count in counts.items():
        if count < 1:
            raise InputError(f"'{name}' is {count:,}, which it cannot be")
        if count > numbers and name not in ("horizon", "episodes", "steps"):
            raise InputError(f"'{name}' is {count:,}, more than all {numbers:,} numbers in the file")
    if shape["n_actions"] not in (None, shape["actions"]):
        raise InputError(f"'n_actions' is {shape['n_actions']}, but there are {shape['actions']} actions")
    if information["models"] != len(information["histories"]):
        raise InputError(f"'models' is {information['models']:,}, which does not fit its histories")
    settings = settings_from(settings_type_of(information["method"]), information["settings"])
    longest = max((len(value) for value in vars(settings).values() if isinstance(value, tuple)), default=0)
    if longest > len(held):
        raise InputError(f"its settings have {longest:,} layers, but there are {len(held):,} tensors")
    world = eqx.filter_eval_shape(lambda: settings.empty_world(shape))
    claimed = information["models"] * sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(world))
    if claimed > numbers:
        raise InputError(
            f"its settings are of models of {claimed:,} numbers, but the file has {numbers:,}; "
            "the file belongs to other settings"
        )
    return information, settings, world


def settings_from(settings_type: type, values: Mapping[str, Any]) -> Any:
    """Settings from JSON: lists are tuples again; settings of another version or type are named."""
    known = {field.name for field in fields(settings_type)}
    unknown = sorted(values.keys() - known)
    if unknown:
        raise InputError(
            f"the model was saved by another version of vlbm: unknown settings {', '.join(unknown)}"
        )
    hints = get_type_hints(settings_type)
    for name, value in values.items():
        if not matches(value, hints[name]):
            raise InputError(f"setting '{name}' is {str(value)[:40]}, which it cannot be")
    return settings_type(
        **{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    )
