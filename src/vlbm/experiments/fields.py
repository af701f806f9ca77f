"""Fields: the fields of a stored JSON object, read with checks that name the file and the field."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, overload

from vlbm.errors import InputError


@dataclass(frozen=True)
class Fields:
    """A JSON object of a file; `within` is how far it lies inside the file's own object."""

    values: Any
    path: str
    within: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.values, Mapping):
            name = self.within.removesuffix(".")
            what = f"field '{name}'" if name else "the file"
            raise InputError(f"{self.path}: {what} must be a JSON object; delete it and run its cell again")

    def refuse(self, name: str, fault: str) -> NoReturn:
        raise InputError(
            f"{self.path}: field '{self.within}{name}' {fault}; delete the file and run its cell again"
        )

    def has(self, name: str) -> bool:
        """Whether a field that must be there is not null."""
        if name not in self.values:
            self.refuse(name, "is missing")
        return self.values[name] is not None

    def inner(self, name: str) -> Fields:
        return Fields(self._read(name), self.path, f"{self.within}{name}.")

    def objects(self) -> Iterator[tuple[str, Fields]]:
        """All fields, as objects."""
        return ((name, self.inner(name)) for name in self.values)

    @overload
    def text(self, name: str) -> str: ...
    @overload
    def text(self, name: str, *, optional: Literal[True]) -> str | None: ...
    def text(self, name: str, *, optional: bool = False) -> str | None:
        if optional and not self.has(name):
            return None
        found = self._read(name)
        if not isinstance(found, str) or not found:
            self.refuse(name, "must be a text")
        return found

    def whole(self, name: str) -> int:
        found = self._read(name)
        if type(found) is not int:
            self.refuse(name, "must be a whole number")
        return found

    def number(self, name: str) -> float:
        return self._check_number(name, self._read(name))

    def number_or_nan(self, name: str) -> float:
        """JSON has no NaN: null stands for it."""
        return self.number(name) if self.has(name) else math.nan

    def numbers(self) -> dict[str, float]:
        """All fields, as numbers."""
        return {name: self.number(name) for name in self.values}

    def number_lists(self, name: str) -> tuple[tuple[float, ...], ...]:
        found = self._read(name)
        if not isinstance(found, list) or not all(isinstance(part, list) for part in found):
            self.refuse(name, "must be lists of numbers in a list")
        return tuple(tuple(self._check_number(name, value) for value in part) for part in found)

    def _read(self, name: str) -> Any:
        if name not in self.values:
            self.refuse(name, "is missing")
        return self.values[name]

    def _check_number(self, name: str, value: Any) -> float:
        if type(value) not in (int, float) or not math.isfinite(value):
            self.refuse(name, "must be a finite number")
        return float(value)


def replace_nan(value: Any) -> Any:
    """NaN becomes null, which JSON has, in all that a JSON object holds."""
    if isinstance(value, Mapping):
        return {name: replace_nan(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [replace_nan(part) for part in value]
    return None if isinstance(value, float) and math.isnan(value) else value
