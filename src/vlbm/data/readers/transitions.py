"""Recorded steps, one row each, cut into episodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from vlbm.data.episodes import Episodes
from vlbm.data.readers import check
from vlbm.data.readers.hints import hint_at_ids, hint_at_probabilities, look_like_probabilities
from vlbm.errors import InputError

# An array or an HDF5 data set: it has a shape and a type, and a slice of rows is an array.
Rows = Any

REQUIRED = ("observations", "actions", "rewards", "terminals")
LOG_PROB = ("infos/action_log_probs", "log_probs")
PROPENSITY = "propensities"
FIELDS = (*REQUIRED, "timeouts", "next_observations", *LOG_PROB, PROPENSITY)

BLOCK_ROWS = 65_536
CLOSE = 1e-4  # two records of one observation differ by rounding alone


NO_NAMES: Mapping[str, tuple[str, ...]] = MappingProxyType({})

# Allocates the array of a field of Episodes, given its name, shape and type.
Allocate = Callable[[str, tuple[int, ...], type], np.ndarray]


def allocate_in_memory(name: str, shape: tuple[int, ...], dtype: type) -> np.ndarray:
    return np.empty(shape, dtype)


class Segments(NamedTuple):
    """Rows of the recorded episodes in the file; each has one observation more here than rows there."""

    end: Int[np.ndarray, " episodes"]  # row of each episode's last step
    terminated: Bool[np.ndarray, " episodes"]

    @property
    def steps(self) -> int:
        return int(self.end[-1]) + 1

    @property
    def episodes(self) -> int:
        return len(self.end)

    @property
    def length(self) -> Int[np.ndarray, " episodes"]:
        return np.diff(self.end, prepend=-1)

    @property
    def final_row(self) -> Int[np.ndarray, " episodes"]:
        """Where each episode's final observation goes."""
        return self.end + 1 + np.arange(self.episodes)

    def observation_rows(self, start: int, stop: int) -> Int[np.ndarray, " rows"]:
        """Where the observations recorded in some rows go."""
        rows = np.arange(start, stop)
        return rows + np.searchsorted(self.end, rows)


def assemble(
    path: check.Path,
    fields: Mapping[str, Rows],
    *,
    n_actions: int | None = None,
    notes: tuple[str, ...] = (),
    names: Mapping[str, tuple[str, ...]] = NO_NAMES,
    allocate: Allocate = allocate_in_memory,
) -> Episodes:
    """Episodes from fields named as in D4RL; assumptions are appended to `notes`.

    `names` are the columns of a table by what they became. Blocks are read straight into the target arrays,
    so that the data are in memory only once.
    """
    _check_shapes(path, fields)
    terminal = check.flags(path, "terminals", _read_column(path, fields["terminals"]))
    timeout, assumed = _find_timeouts(path, fields, terminal)
    done = terminal | timeout
    if not done[-1]:
        done[-1] = True
        if "timeouts" in fields:
            assumed += ("the last episode has no end in the file and is read as cut off there",)
    end = np.flatnonzero(done)
    segments = Segments(end, terminal[end])
    observation, contradictions = _read_observations(path, fields, segments, allocate)
    action, n_actions = _read_actions(path, fields["actions"], n_actions, allocate)
    known = "next_observations" in fields or bool(segments.terminated.all())
    log_prob = _read_log_probs(path, fields, discrete=n_actions is not None, allocate=allocate)
    return Episodes(
        observation=observation,
        action=action,
        reward=_read_steps(
            path, "rewards", fields["rewards"], allocate("reward", (segments.steps,), np.float32)
        ),
        length=segments.length,
        terminated=segments.terminated,
        log_prob=log_prob,
        n_actions=n_actions,
        final_observed=None if known else segments.terminated.copy(),
        observation_names=_name_numbers(names.get("observation", ()), observation),
        action_names=_name_numbers(names.get("action", ()), action),
        columns=names,
        notes=(
            *notes,
            *assumed,
            *contradictions,
            *(() if "next_observations" in fields else _note_unknown_finals(segments)),
            *hint_at_ids(action),
            *hint_at_probabilities(log_prob),
        ),
    )


def _name_numbers(names: tuple[str, ...], values: Shaped[np.ndarray, "rows *size"]) -> tuple[str, ...] | None:
    """Names of the numbers in a vector, where every number had a column of its own."""
    return names if values.ndim == 2 and values.shape[1] == len(names) else None


def _check_shapes(path: check.Path, fields: Mapping[str, Rows]) -> None:
    for name, values in fields.items():
        check.numeric(path, name, values.dtype)
        if name in ("rewards", "terminals", "timeouts", *LOG_PROB, PROPENSITY):
            check.column(path, name, values.shape)
    count = fields["rewards"].shape[0]
    for name, values in fields.items():
        check.rows(path, name, values.shape, count)
    check.not_empty(path, count)
    size = check.vectors(path, "observations", fields["observations"].shape)
    check.vectors(path, "actions", fields["actions"].shape)
    if "next_observations" in fields:
        following = check.vectors(path, "next_observations", fields["next_observations"].shape)
        if following != size:
            raise InputError(
                f"{path}: field 'next_observations' has {following} numbers in each row, but "
                f"'observations' has {size}; both must describe the same observation"
            )


def _find_timeouts(
    path: check.Path, fields: Mapping[str, Rows], terminal: Bool[np.ndarray, " rows"]
) -> tuple[Bool[np.ndarray, " rows"], tuple[str, ...]]:
    """Steps at which a time limit ended an episode, and assumptions made."""
    if "timeouts" in fields:
        return check.flags(path, "timeouts", _read_column(path, fields["timeouts"])), ()
    if "next_observations" in fields:
        jump = _find_jumps(path, fields) & ~terminal
        if jump.any():
            where = f"({jump.sum()} of {len(jump)} steps)"
            return jump, (
                f"no 'timeouts': episodes are cut where the next row does not go on from them {where}",
            )
    note = "no 'timeouts': episodes end only where 'terminals' says so, and where the file ends"
    if not terminal.any():
        note = "no 'timeouts' and no step with 'terminals': the whole file is read as one episode"
    return np.zeros_like(terminal), (note,)


def _find_jumps(path: check.Path, fields: Mapping[str, Rows]) -> Bool[np.ndarray, " rows"]:
    """True where a step's next observation is not the observation of the row below."""
    count = fields["rewards"].shape[0]
    jump = np.zeros(count, bool)
    for start, following in _iterate_blocks(path, "next_observations", fields["next_observations"]):
        stop = min(start + len(following), count - 1)
        below = _read_slice(path, fields["observations"], start + 1, stop + 1)
        below = check.finite(path, "observations", below, at=range(start + 1, stop + 1))
        following = following[: stop - start]
        jump[start:stop] = (below.reshape(following.shape) != following).any(axis=1)
    return jump


def _read_observations(
    path: check.Path, fields: Mapping[str, Rows], segments: Segments, allocate: Allocate
) -> tuple[Float[np.ndarray, "steps+episodes obs"], tuple[str, ...]]:
    """Observations with each episode's final one, and what contradicts them."""
    size = check.vectors(path, "observations", fields["observations"].shape)
    observation = allocate("observation", (segments.steps + segments.episodes, size), np.float32)
    for start, block in _iterate_blocks(path, "observations", fields["observations"]):
        observation[segments.observation_rows(start, start + len(block))] = block
    final_row = segments.final_row
    if "next_observations" not in fields:
        observation[final_row] = observation[final_row - 1]
        return observation, ()
    following, end = fields["next_observations"], segments.end
    differ = 0
    for start, stop in _block_bounds(following):
        block = _read_slice(path, following, start, stop).reshape(stop - start, size)
        first, last = np.searchsorted(end, (start, stop))
        final = check.finite(path, "next_observations", block[end[first:last] - start], at=end[first:last])
        observation[final_row[first:last]] = final
        recorded = observation[segments.observation_rows(start, stop) + 1]
        differ += int((np.abs(block - recorded) > CLOSE * (1 + np.abs(recorded))).any(axis=1).sum())
    if not differ:
        return observation, ()
    return observation, (
        f"next observations contradict the observations of the steps after them ({differ} of "
        f"{segments.steps} steps): only those of last steps are used; check the order of the rows",
    )


def _read_actions(
    path: check.Path, values: Rows, n_actions: int | None, allocate: Allocate
) -> tuple[Float[np.ndarray, "steps act"] | Int[np.ndarray, " steps"], int | None]:
    """Vectors, or ids where there is one whole number for each step or `n_actions` says so."""
    size = check.vectors(path, "actions", values.shape)
    if n_actions is not None and size != 1:
        raise InputError(
            f"{path}: field 'actions' has {size} numbers in each row, but n_actions={n_actions} asks for "
            "discrete actions, one id for each step; leave out n_actions"
        )
    steps = values.shape[0]
    if n_actions is not None or (size == 1 and values.dtype.kind in "iub"):
        ids, n_actions = check.action_ids(path, "actions", _read_column(path, values), n_actions)
        action = allocate("action", (steps,), np.int32)
        action[:] = ids
        return action, n_actions
    return _read_steps(path, "actions", values, allocate("action", (steps, size), np.float32)), None


def _read_log_probs(
    path: check.Path, fields: Mapping[str, Rows], *, discrete: bool, allocate: Allocate
) -> Float[np.ndarray, " steps"] | None:
    """Logged log-probabilities, or the logarithms of logged probabilities."""
    given = [name for name in (*LOG_PROB, PROPENSITY) if name in fields]
    if not given:
        return None
    name = given[0]
    if PROPENSITY in given and len(given) > 1:
        raise InputError(f"{path}: has both '{name}' and '{PROPENSITY}', which say the same; leave out one")
    values = fields[name]
    log_prob = _read_steps(path, name, values, allocate("log_prob", (values.shape[0],), np.float32))
    if name == PROPENSITY:
        wrong = (log_prob <= 0) | (log_prob > 1)
        if wrong.any():
            row = int(np.argmax(wrong))
            raise InputError(
                f"{path}: field '{name}' holds {log_prob[row]:g} in row {row} (rows count from 0); the "
                "probability of an action that was taken lies above 0 and is at most 1 (give logarithms of "
                "densities as log_prob)"
            )
        return np.log(log_prob, out=log_prob)
    if discrete and look_like_probabilities(log_prob):
        raise InputError(
            f"{path}: field '{name}' lies in (0, 1] everywhere, and the logarithm of an id's probability is "
            "never above 0: these look like probabilities; give them as propensity (--column propensity=NAME)"
        )
    return log_prob


def _read_steps(
    path: check.Path, name: str, values: Rows, out: Float[np.ndarray, "steps *size"]
) -> Float[np.ndarray, "steps *size"]:
    """A field, written where it belongs."""
    for start, block in _iterate_blocks(path, name, values):
        out[start : start + len(block)] = block.reshape(-1, *out.shape[1:])
    return out


def _note_unknown_finals(segments: Segments) -> tuple[str, ...]:
    """What was assumed because next observations were not recorded."""
    counts = {
        "terminated episodes repeat their last observation as the final one": segments.terminated,
        "what came of the last step of cut-off episodes is unknown": ~segments.terminated,
    }
    return tuple(
        f"no next observations: {what} ({affected.sum()} of {len(affected)} episodes)"
        for what, affected in counts.items()
        if affected.any()
    )


def _read_column(path: check.Path, values: Rows) -> Shaped[np.ndarray, " rows"]:
    return _read_slice(path, values, 0, values.shape[0]).reshape(-1)


def _read_slice(path: check.Path, values: Rows, start: int, stop: int) -> Shaped[np.ndarray, "rows ..."]:
    # A damaged HDF5 file raises only when its chunks are decompressed.
    with check.translate_errors(path, "HDF5"):
        return np.asarray(values[start:stop])


def _block_bounds(values: Rows) -> Iterator[tuple[int, int]]:
    """First and last row (exclusive) of each block to read at once."""
    count = values.shape[0]
    # Blocks are whole HDF5 chunks, so that each chunk is decompressed once.
    chunk = (getattr(values, "chunks", None) or (1,))[0]
    size = max(BLOCK_ROWS // chunk, 1) * chunk
    for start in range(0, count, size):
        yield start, min(start + size, count)


def _iterate_blocks(
    path: check.Path, name: str, values: Rows
) -> Iterator[tuple[int, Float[np.ndarray, "block size"]]]:
    """First row and checked contents of each block, as vectors."""
    for start, stop in _block_bounds(values):
        block = check.finite(path, name, _read_slice(path, values, start, stop), at=range(start, stop))
        yield start, block.reshape(stop - start, -1)
