"""Grids: the settings that a search chooses from, the paper's or any others."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from vlbm.errors import InputError
from vlbm.estimators.registry import parse_settings

PAPER = "paper"
# The paper's grid (appendix, implementation details): the learning rate, and C1 = C2.
RATES = (3e-3, 1e-3, 7e-4, 5e-4, 3e-4, 1e-4, 5e-5)
CONSTANTS = (5.0, 1.0, 0.1, 0.05, 0.01, 0.005, 0.001, 0.0001)
PAPER_GRID: tuple[dict[str, Any], ...] = tuple(
    {"learning_rate": rate, "rsa_weight": constant, "elbo_weight": constant}
    for rate, constant in itertools.product(RATES, CONSTANTS)
)


def make_grid(**choices: Sequence[Any]) -> tuple[dict[str, Any], ...]:
    """Every combination: make_grid(learning_rate=(1e-3, 3e-4), units=(64, 128)) has four."""
    return tuple(dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values()))


def describe_settings(settings: Mapping[str, Any]) -> str:
    """As --set takes them."""
    return " ".join(f"{name}={describe_value(value)}" for name, value in settings.items())


def describe_value(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def parse_grid(settings_type: type, texts: Sequence[str]) -> tuple[dict[str, Any], ...]:
    """Every combination of texts such as 'learning_rate=1e-3,3e-4', or of 'paper' its grid.

    Several layers are one value in parentheses: 'units=(64,64),(128,128)'.
    """
    if PAPER in texts:
        if len(texts) > 1:
            raise InputError("grid paper: is a grid of its own; leave the other texts out")
        parse_settings(settings_type, [f"{name}={value}" for name, value in PAPER_GRID[0].items()])
        return PAPER_GRID
    choices: dict[str, list[Any]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals or not values:
            raise InputError(f"grid {text}: expected paper, or KEY=V1,V2 such as learning_rate=1e-3,3e-4")
        if name in choices or "." in name or name == "steps":
            reason = {"steps": "is how long candidates are trained; --set steps=... sets it"}.get(
                name, "is named twice" if name in choices else "settings within settings cannot be searched"
            )
            raise InputError(f"grid {text}: {reason}")
        # Commas within parentheses are part of a value.
        parts = [part for part in re.split(r",(?![^(]*\))", values) if part]
        choices[name] = [parse_settings(settings_type, [f"{name}={part}"])[name] for part in parts]
    return make_grid(**choices)
