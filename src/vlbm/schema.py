"""Whether what was read from a file is what the annotations of our types say."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import jaxtyping
import numpy as np

from vlbm.errors import InputError, first_line

# Whole numbers beyond this are no counts, steps or seeds.
LARGEST = 1 << 53
# What wrong content raises where it is taken apart; memory runs out where it claims absurd sizes.
DAMAGE = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)


@contextmanager
def refuse_damage(path: Path, remedy: str) -> Iterator[None]:
    """Turn whatever wrong content raises into one error that names the file."""
    try:
        yield
    except InputError as error:
        if str(error).startswith(str(path.parent)):  # it names the file, or one beside it
            raise
        raise InputError(f"{path}: {error}; {remedy}") from error
    except DAMAGE as error:
        what = f"{first_line(error)} is missing" if isinstance(error, KeyError) else first_line(error)
        raise InputError(
            f"{path}: is damaged or was written by another version of vlbm ({what}); {remedy}"
        ) from error


def check_fields(value: Any, where: str = "") -> None:
    """Refuse a dataclass whose fields, or theirs in turn, are not of the annotated types.

    Axes of arrays that have the same name in one dataclass must have the same length.
    """
    name, hints = where or type(value).__name__, get_type_hints(type(value))
    with jaxtyping.jaxtyped("context"):
        wrong = [
            field.name
            for field in fields(value)
            if not matches(getattr(value, field.name), hints[field.name])
        ]
    if wrong:
        raise InputError(f"{name}: '{wrong[0]}' is not what it should be")
    for field in fields(value):
        _check_inner(getattr(value, field.name), f"{name}.{field.name}")


def check_entries(values: Any, expected: Mapping[str, Any]) -> None:
    """Refuse a mapping from JSON whose entries are missing or not of the expected types."""
    for name, hint in expected.items():
        if not matches(values[name], hint):
            raise InputError(f"'{name}' is {_shorten(values[name])}, which it cannot be")


def matches(value: Any, hint: Any) -> bool:
    """Whether a value is of an annotated type; what the annotation leaves open matches."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin in (Union, types.UnionType):
        return any(matches(value, option) for option in arguments)
    if origin is Literal:
        return any(type(value) is type(option) and value == option for option in arguments)
    if hint is None or hint is type(None):
        return value is None
    if hint is int:
        return type(value) is int and abs(value) <= LARGEST
    if hint is float:
        return matches(value, int) or isinstance(value, float | np.floating)
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return isinstance(value, tuple | list) and all(matches(part, arguments[0]) for part in value)
    if origin is tuple:
        return (
            isinstance(value, tuple | list)
            and len(value) == len(arguments)
            and all(map(matches, value, arguments))
        )
    if origin is list:
        return isinstance(value, list) and all(matches(part, arguments[0]) for part in value)
    if origin in (dict, Mapping):
        return isinstance(value, Mapping) and all(
            matches(name, arguments[0]) and matches(part, arguments[1]) for name, part in value.items()
        )
    return isinstance(value, hint) if isinstance(hint, type) else True


def _check_inner(value: Any, where: str) -> None:
    if is_dataclass(value):
        check_fields(value, where)
    elif isinstance(value, Mapping):
        for name, part in value.items():
            _check_inner(part, f"{where}['{name}']")
    elif isinstance(value, tuple | list):
        for index, part in enumerate(value):
            _check_inner(part, f"{where}[{index}]")


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
