"""What goes wrong for users, and how it is said."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any


class InputError(ValueError):
    """Something the user gave cannot be used; the message names the file, the field and the remedy."""


class OutputError(OSError):
    """A file cannot be written, as on a disk that is full; the message names it and the remedy."""


class TrainingDivergedError(RuntimeError):
    """The loss stopped being a number; the message names the step and the setting to change."""


def check_counts(settings: Any, *names: str) -> None:
    """Refuse settings that must be at least 1."""
    for name in names:
        if getattr(settings, name) < 1:
            raise InputError(f"setting {name}={getattr(settings, name)}: must be at least 1")


def require(module: str, *, extra: str, purpose: str) -> ModuleType:
    """Import a module that belongs to an extra, or say which extra to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        # A package that is there but broken must not be reported as missing.
        if error.name is not None and error.name.split(".")[0] != module.split(".")[0]:
            raise
        raise InputError(
            f"{purpose} needs the extra '{extra}': pip install 'vlbm[{extra}]' "
            f"(in a clone: pip install -c constraints.txt '.[{extra}]')"
        ) from error


def first_line(error: BaseException) -> str:
    """What an error of a library says, shortened to what fits into ours."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:200] if lines else type(error).__name__
