"""Validation shared by all readers."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from vlbm.errors import InputError, OutputError
from vlbm.writing import NO_ROOM

Path = str | os.PathLike[str]

# Models take an action as one number for each choice; more choices than this must be asked for.
MOST_ACTIONS = 10_000
MOST_ASKED_FOR = 1_000_000  # what users may say themselves: methods keep numbers for every action
# A table of steps with more columns is no table of steps.
MOST_COLUMNS = 16_384
MOST_SHOWN = 40  # names in a message


@contextmanager
def translate_errors(path: Path, kind: str) -> Iterator[None]:
    """Turn any exception of a file library into an InputError.

    Only calls into the library belong inside, because all exceptions are caught.
    """
    try:
        yield
    except InputError:
        raise
    except MemoryError as error:
        raise InputError(
            f"{path}: cannot be read as {kind}: it asks for more memory than there is; if the file is sound, "
            "give it in smaller parts"
        ) from error
    except Exception as error:
        if isinstance(error, OutputError) or (isinstance(error, OSError) and error.errno in NO_ROOM):
            raise  # of what is written meanwhile: the file that is read is sound
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise InputError(
            f"{path}: cannot be read as {kind} ({reason}); the file may be damaged or incomplete: "
            "fetch or write it again"
        ) from error


def present(path: Path, names: Iterable[str], required: Iterable[str]) -> None:
    """Every required field is there."""
    names = sorted(names)
    missing = [name for name in required if name not in names]
    if missing:
        shown = [name if name.isprintable() else repr(name) for name in names[:MOST_SHOWN]]
        shown += [f"and {len(names) - MOST_SHOWN} more"] if len(names) > MOST_SHOWN else []
        raise InputError(
            f"{path}: field '{missing[0]}' is missing; the file has: {', '.join(shown) or 'no fields'}. "
            f"Rename the field that holds it to '{missing[0]}'"
        )


def numeric(path: Path, name: str, dtype: np.dtype) -> None:
    """Numbers or flags; not text, not objects, not records."""
    if dtype.kind not in "fiub":
        raise InputError(f"{path}: field '{name}' has type {dtype}; it must hold plain numbers")


def rows(path: Path, name: str, shape: tuple[int, ...], count: int) -> None:
    """One row for each of `count` steps."""
    if not shape or shape[0] != count:
        found = f"{shape[0]} rows" if shape else "a single value"
        raise InputError(
            f"{path}: field '{name}' has {found}, but 'rewards' has {count}; every step needs one row in each"
        )


def column(path: Path, name: str, shape: tuple[int, ...]) -> None:
    """One number for each step: (n,) or (n, 1)."""
    if len(shape) == 0 or any(size != 1 for size in shape[1:]):
        raise InputError(f"{path}: field '{name}' has shape {shape}; it must hold one number for each step")


def columns(path: Path, names: Sequence[str]) -> None:
    """Not so many that looking for names in them would take for ever."""
    if len(names) > MOST_COLUMNS:
        raise InputError(
            f"{path}: has {len(names):,} columns, more than {MOST_COLUMNS:,}; give one row for each step, "
            "and leave out columns that are not needed"
        )


def vectors(path: Path, name: str, shape: tuple[int, ...]) -> int:
    """One vector for each step: (n, size), or (n,) for size one; returns the size."""
    if len(shape) not in (1, 2) or shape[-1] == 0:
        raise InputError(
            f"{path}: field '{name}' has shape {shape}; it must be (steps, size): make each row a vector"
        )
    return 1 if len(shape) == 1 else shape[1]


def finite(
    path: Path,
    name: str,
    values: Shaped[np.ndarray, "rows ..."],
    *,
    at: Sequence[int] | Int[np.ndarray, " rows"] | None = None,
) -> Float[np.ndarray, "rows ..."]:
    """The values in single precision, if all of them are finite.

    `at` gives the row numbers to name in the message, where they are not 0, 1, 2, ...
    """
    with np.errstate(over="ignore"):
        single = np.asarray(values, np.float32)
    sound = np.isfinite(single)
    if not sound.all():
        place = tuple(np.argwhere(~sound)[0])
        row = place[0] if at is None else at[place[0]]
        raise InputError(
            f"{path}: field '{name}' holds {values[place]} in row {row} (rows count from 0), "
            "which is not a finite number in single precision; remove or repair that episode"
        )
    return single


def flags(path: Path, name: str, values: Shaped[np.ndarray, " rows"]) -> Bool[np.ndarray, " rows"]:
    """True and false, however they are stored."""
    if values.dtype == bool:
        return values
    strange = (values != 0) & (values != 1)
    if strange.any():
        row = int(np.argmax(strange))
        raise InputError(
            f"{path}: field '{name}' holds {values[row]} in row {row} (rows count from 0); "
            "it must be 0 or 1 (false or true)"
        )
    return values.astype(bool)


def action_ids(
    path: Path,
    name: str,
    values: Shaped[np.ndarray, " rows"],
    n_actions: int | None,
    *,
    at: Sequence[int] | None = None,
) -> tuple[Int[np.ndarray, " rows"], int]:
    """Discrete actions as ids from 0, and how many there are (by default the largest id plus one).

    `at` gives the row numbers to name in the message, where they are not 0, 1, 2, ...
    """
    if n_actions is not None and n_actions > MOST_ASKED_FOR:
        raise InputError(
            f"{path}: n_actions={n_actions} is more than {MOST_ASKED_FOR:,}; number the actions from 0 "
            "without gaps, or give them as vectors"
        )
    wrong = (values < 0) | (values != np.floor(values)) if values.dtype.kind == "f" else values < 0
    if n_actions is not None:
        wrong |= values >= n_actions
    # NaN compares false with everything, so it needs its own check.
    wrong |= ~np.isfinite(values)
    if wrong.any():
        row = int(np.argmax(wrong))
        upper = "up" if n_actions is None else f"to {n_actions - 1} (n_actions={n_actions})"
        raise InputError(
            f"{path}: field '{name}' holds {values[row]} in row {row if at is None else at[row]} "
            f"(rows count from 0); discrete actions are whole numbers from 0 {upper}"
        )
    if n_actions is None:
        n_actions = action_count(path, name, int(values.max(initial=0)) + 1)
    return values.astype(np.int32), n_actions


def action_count(path: Path, name: str, declared: object) -> int:
    """How many actions a file says there are, if that can be."""
    if isinstance(declared, bool) or not isinstance(declared, int) or declared < 1:
        raise InputError(f"{path}: field '{name}' must be a whole number from 1; it is {declared!r:.80}")
    if declared > MOST_ACTIONS:
        raise InputError(
            f"{path}: field '{name}' has ids up to {declared - 1}, so more than {MOST_ACTIONS:,} actions; "
            f"number the actions from 0 without gaps, or say n_actions={declared} if there are so many"
        )
    return declared


def not_empty(path: Path, steps: int) -> None:
    """At least one step."""
    if steps == 0:
        raise InputError(f"{path}: has no steps; give a file with at least one episode")
