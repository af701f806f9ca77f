"""Recorded steps, one row each, cut into episodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from vlbm.data.episodes import Episodes
from vlbm.data.readers import check
from vlbm.errors import InputError

# An array or an HDF5 data set: it has a shape and a type, and a slice of rows is an array.
Rows = Any

REQUIRED = ("observations", "actions", "rewards", "terminals")
LOG_PROB = ("infos/action_log_probs", "log_probs")
FIELDS = (*REQUIRED, "timeouts", "next_observations", *LOG_PROB)

BLOCK_ROWS = 65_536


# Allocates the array of a field of Episodes, given its name, shape and type.
Allocate = Callable[[str, tuple[int, ...], type], np.ndarray]


def allocate_in_memory(name: str, shape: tuple[int, ...], dtype: type) -> np.ndarray:
    return np.empty(shape, dtype)


class Segments(NamedTuple):
    """Rows of the recorded episodes in the file, and target rows of their observations."""

    begin: Int[np.ndarray, " recorded"]  # row of each recorded episode's first step
    end: Int[np.ndarray, " recorded"]  # and of its last
    length: Int[np.ndarray, " recorded"]  # steps to keep of each; 0 leaves it out
    terminated: Bool[np.ndarray, " recorded"]
    dropped: Int[np.ndarray, " dropped"]  # rows of steps that are left out
    first_row: Int[np.ndarray, " recorded"]  # of each episode's first observation, where it is kept

    @property
    def kept(self) -> Bool[np.ndarray, " recorded"]:
        return self.length > 0

    @property
    def final_row(self) -> Int[np.ndarray, " recorded"]:
        return self.first_row + self.length

    def steps(self, start: int, stop: int) -> tuple[slice, slice | Bool[np.ndarray, " rows"]]:
        """Where the steps recorded in some rows go, and which of the rows those are."""
        first, last = np.searchsorted(self.dropped, (start, stop))
        target = slice(start - int(first), stop - int(last))
        if first == last:
            return target, slice(None)
        keep = np.ones(stop - start, bool)
        keep[self.dropped[first:last] - start] = False
        return target, keep

    def observations(
        self, start: int, stop: int
    ) -> tuple[Int[np.ndarray, " kept"], slice | Bool[np.ndarray, " rows"]]:
        """Where the observations recorded in some rows go, and which of the rows those are."""
        first, last = np.searchsorted(self.end, (start, stop - 1))
        here = slice(int(first), int(last) + 1)
        count = np.minimum(self.end[here] + 1, stop) - np.maximum(self.begin[here], start)
        kept = self.kept[here]
        target = np.arange(start, stop) + np.repeat(self.first_row[here] - self.begin[here], count)
        if kept.all():
            return target, slice(None)
        keep = np.repeat(kept, count)
        return target[keep], keep


def assemble(
    path: check.Path,
    fields: Mapping[str, Rows],
    *,
    n_actions: int | None = None,
    notes: tuple[str, ...] = (),
    allocate: Allocate = allocate_in_memory,
) -> Episodes:
    """Episodes from fields named as in D4RL; assumptions are appended to `notes`.

    Blocks are read straight into the target arrays, so that the data are in memory only once.
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
    known = "next_observations" in fields
    segments = _segment(end, terminal[end], final_known=known)
    if not segments.length.any():
        raise InputError(
            f"{path}: every episode is one step cut off before its outcome was recorded; "
            "give a file with next observations"
        )
    action, n_actions = _read_actions(path, fields["actions"], n_actions, segments, allocate)
    log_prob = next((name for name in LOG_PROB if name in fields), None)
    return Episodes(
        observation=_read_observations(path, fields, segments, allocate),
        action=action,
        reward=_read_steps(
            path,
            "rewards",
            fields["rewards"],
            segments,
            allocate("reward", (_count_steps(segments),), np.float32),
        ),
        length=segments.length[segments.kept],
        terminated=segments.terminated[segments.kept],
        log_prob=None
        if log_prob is None
        else _read_steps(
            path,
            log_prob,
            fields[log_prob],
            segments,
            allocate("log_prob", (_count_steps(segments),), np.float32),
        ),
        n_actions=n_actions,
        notes=(*notes, *assumed, *(() if known else _note_unknown_finals(segments))),
    )


def _check_shapes(path: check.Path, fields: Mapping[str, Rows]) -> None:
    for name, values in fields.items():
        check.numeric(path, name, values.dtype)
        if name in ("rewards", "terminals", "timeouts", *LOG_PROB):
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


def _segment(
    end: Int[np.ndarray, " recorded"], terminated: Bool[np.ndarray, " recorded"], *, final_known: bool
) -> Segments:
    """The segments; without next observations, truncated episodes lose their last step."""
    recorded = np.diff(end, prepend=-1)
    # The outcome of the last step of a truncated episode is unknown, so its observation becomes the final
    # one. In terminated episodes no observation is needed after it, and the last reward is kept.
    shortened = np.zeros_like(terminated) if final_known else ~terminated
    length = recorded - shortened
    observations = np.where(length > 0, length + 1, 0)
    return Segments(
        begin=end + 1 - recorded,
        end=end,
        length=length,
        terminated=terminated,
        dropped=end[shortened],
        first_row=np.cumsum(observations) - observations,
    )


def _read_observations(
    path: check.Path, fields: Mapping[str, Rows], segments: Segments, allocate: Allocate
) -> Float[np.ndarray, "steps+episodes obs"]:
    size = check.vectors(path, "observations", fields["observations"].shape)
    observation = allocate(
        "observation", (_count_steps(segments) + int(segments.kept.sum()), size), np.float32
    )
    for start, block in _iterate_blocks(path, "observations", fields["observations"]):
        target, rows = segments.observations(start, start + len(block))
        observation[target] = block[rows]
    if "next_observations" not in fields:
        done = segments.final_row[segments.kept & segments.terminated]
        observation[done] = observation[done - 1]
        return observation
    following, end = fields["next_observations"], segments.end
    for start, stop in _block_bounds(following):
        first, last = np.searchsorted(end, (start, stop))
        if first < last:
            final = _read_slice(path, following, start, stop)[end[first:last] - start]
            final = check.finite(path, "next_observations", final, at=end[first:last])
            observation[segments.final_row[first:last]] = final.reshape(last - first, size)
    return observation


def _read_actions(
    path: check.Path, values: Rows, n_actions: int | None, segments: Segments, allocate: Allocate
) -> tuple[Float[np.ndarray, "steps act"] | Int[np.ndarray, " steps"], int | None]:
    """Vectors, or ids where there is one whole number for each step or `n_actions` says so."""
    size = check.vectors(path, "actions", values.shape)
    if n_actions is not None and size != 1:
        raise InputError(
            f"{path}: field 'actions' has {size} numbers in each row, but n_actions={n_actions} asks for "
            "discrete actions, one id for each step; leave out n_actions"
        )
    if n_actions is not None or (size == 1 and values.dtype.kind in "iub"):
        ids, n_actions = check.action_ids(path, "actions", _read_column(path, values), n_actions)
        action = allocate("action", (_count_steps(segments),), np.int32)
        target, rows = segments.steps(0, len(ids))
        action[target] = ids[rows]
        return action, n_actions
    return _read_steps(
        path, "actions", values, segments, allocate("action", (_count_steps(segments), size), np.float32)
    ), None


def _read_steps(
    path: check.Path, name: str, values: Rows, segments: Segments, out: Float[np.ndarray, "steps *size"]
) -> Float[np.ndarray, "steps *size"]:
    """The steps that are kept of a field, written where they belong."""
    for start, block in _iterate_blocks(path, name, values):
        target, rows = segments.steps(start, start + len(block))
        out[target] = block[rows].reshape(-1, *out.shape[1:])
    return out


def _count_steps(segments: Segments) -> int:
    return int(segments.length.sum())


def _note_unknown_finals(segments: Segments) -> tuple[str, ...]:
    """What was assumed because next observations were not recorded."""
    counts = {
        "terminated episodes repeat their last observation as the final one": segments.terminated,
        "cut-off episodes lose their last step, whose outcome is unknown": ~segments.terminated
        & segments.kept,
        "cut-off episodes of a single step are left out": segments.length == 0,
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
