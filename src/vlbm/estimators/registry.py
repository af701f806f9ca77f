"""Methods by name, and settings from text."""

from __future__ import annotations

import ast
import difflib
import importlib
import math
import types
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from vlbm.errors import InputError
from vlbm.estimators.world_models.evaluator import WorldEvaluator
from vlbm.estimators.world_models.presets import PRESETS


class Method(NamedTuple):
    """Where a method's settings live."""

    home: str  # module:class, imported when the method is asked for
    about: str


_WORLD_MODELS = "vlbm.estimators.world_models"
_WORLD = f"{_WORLD_MODELS}.vlbm:VLBM"
_IMPORTANCE = "vlbm.estimators.importance"
_DOUBLY_ROBUST = "vlbm.estimators.doubly_robust"
_DICE = "vlbm.estimators.dice"
METHODS: dict[str, Method] = {
    "vlbm": Method(_WORLD, "variational latent branching model"),
    "vlm": Method(_WORLD, "its ablation: one branch, the bound alone"),
    "vlm-rsa": Method(_WORLD, "one branch, aligned recurrent states"),
    "vlm-rsa-mse": Method(_WORLD, "one branch, aligned by squared error"),
    "vlm-rsa-ensemble": Method(_WORLD, "whole models instead of branches"),
    "ff": Method(
        "vlbm.estimators.world_models.feedforward:FeedForward", "ensemble of feed-forward Gaussian models"
    ),
    "ar": Method(
        "vlbm.estimators.world_models.autoregressive:AutoRegressive", "ensemble of auto-regressive models"
    ),
    "fqe": Method("vlbm.estimators.fqe:FQE", "fitted Q evaluation"),
    "dr": Method(f"{_DOUBLY_ROBUST}:DoublyRobust", "doubly robust: importance weights with FQE's values"),
    "wdr": Method(f"{_DOUBLY_ROBUST}:WeightedDoublyRobust", "the same, self-normalised"),
    "dice": Method(f"{_DICE}:DICE", "ratios of visits to logged steps, by the regularised Lagrangian"),
    "dualdice": Method(f"{_DICE}:DualDICE", "the same without rewards, positivity and normalisation"),
    "gendice": Method(f"{_DICE}:GenDICE", "the same without rewards, values regularised instead of ratios"),
    "vpm": Method("vlbm.estimators.vpm:VPM", "the same ratios, by the variational power method"),
    "is": Method(f"{_IMPORTANCE}:IS", "importance sampling of whole episodes"),
    "wis": Method(f"{_IMPORTANCE}:WIS", "the same, self-normalised"),
    "pdis": Method(f"{_IMPORTANCE}:PDIS", "importance sampling step by step"),
    "wpdis": Method(f"{_IMPORTANCE}:WPDIS", "the same, self-normalised; DOPE calls it IS"),
}


def make_estimator(method: str = "vlbm", preset: str = "default", settings: Sequence[str] = ()) -> Any:
    """A method by name with a preset's settings, changed by 'key=value' texts.

    Args:
        method: Its name: vlbm, ff, fqe, wpdis, ...; `vlbm methods` lists them.
        preset: default, quick, thorough or paper, where the method has them.
        settings: Texts such as 'steps=500' or 'critic.steps=2000'.
    """
    settings_type, presets = settings_type_of(method), presets_of(method)
    if preset not in presets:
        raise InputError(f"method '{method}' has no preset '{preset}'; there are {', '.join(presets)}")
    changes = parse_settings(settings_type, settings)
    return settings_type(**{**presets[preset], **changes})


def presets_of(method: str) -> dict[str, dict[str, Any]]:
    """What every preset of a method changes, by name."""
    _method(method)
    return PRESETS.get(method, {"default": {}})


def settings_type_of(method: str) -> type:
    """The dataclass that a method's settings are fields of."""
    module, _, name = _method(method).home.partition(":")
    return getattr(importlib.import_module(module), name)


def load_model(directory: str | Path) -> WorldEvaluator:
    """A fitted model that was saved to a directory.

    Args:
        directory: What `vlbm fit --save` or `evaluator.save` wrote.
    """
    if not Path(directory).is_dir():
        raise InputError(f"{directory}: there is no such directory; a saved model is a directory")
    return WorldEvaluator.load(directory, settings_type_of)


def _method(name: str) -> Method:
    if name not in METHODS:
        raise InputError(f"unknown method '{name}'; there are {', '.join(METHODS)}")
    return METHODS[name]


def parse_settings(settings_type: type, assignments: Sequence[str], within: str = "") -> dict[str, Any]:
    """'key=value' texts as settings, checked against the types of the fields.

    Settings that are settings themselves are reached by a dot: 'critic.steps=2000'.

    Args:
        settings_type: The dataclass whose fields they are.
        assignments: The texts.
        within: How far the dots have led already.
    """
    hints = get_type_hints(settings_type)
    names = [field.name for field in fields(settings_type)]
    parsed: dict[str, Any] = {}
    inner: dict[str, list[str]] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals:
            raise InputError(f"setting '{within}{assignment}': expected key=value")
        name, dot, rest = name.partition(".")
        if name not in names or (dot and not is_dataclass(hints[name])):
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean '{within}{near[0]}'?" if near else f"there are {', '.join(names)}"
            raise InputError(f"unknown setting '{within}{name}{dot}{rest}'; {hint}")
        if dot:
            inner.setdefault(name, []).append(f"{rest}={text}")
        elif is_dataclass(hints[name]):
            raise InputError(
                f"setting {within}{name}={text}: it has settings of its own, such as "
                f"{name}.{fields(hints[name])[0].name}=..."
            )
        else:
            parsed[name] = _parse(f"{within}{name}", text, hints[name])
    for name, changes in inner.items():
        parsed[name] = hints[name](**parse_settings(hints[name], changes, f"{within}{name}."))
    return parsed


def _parse(name: str, text: str, hint: Any) -> Any:
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        value = {"true": True, "false": False, "none": None}.get(text.lower(), text)
    for option in get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,):
        if get_origin(option) is Literal and text in get_args(option):
            return text
        if option is type(None) and value is None:
            return None
        if option is float and type(value) in (int, float) and math.isfinite(value):
            return float(value)
        if option in (int, bool, str) and type(value) is option:
            return value
        if get_origin(option) is tuple:
            items = value if isinstance(value, tuple | list) else (value,)
            if float in get_args(option) and all(
                type(item) in (int, float) and math.isfinite(item) for item in items
            ):
                return tuple(float(item) for item in items)
            if all(type(item) is int for item in items):
                return tuple(items)
    raise InputError(f"setting {name}={text}: expected {_described(hint)}")


def _described(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return " or ".join(map(str, get_args(hint)))
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(_described(option) for option in get_args(hint))
    if get_origin(hint) is tuple:
        return f"{'' if float in get_args(hint) else 'whole '}numbers separated by commas"
    return {int: "a whole number", float: "a number", bool: "true or false", type(None): "none"}.get(
        hint, "a text"
    )
