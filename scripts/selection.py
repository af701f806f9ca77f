"""Which snapshots of training become targets and which become logging policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

REPLAY = 8  # snapshots that stand for a training run up to the medium policy
MEDIUM = 0.45  # how good the medium policy is, from 0 (the worst snapshot) to 1 (the expert)


class Logging(NamedTuple):
    """Places in a list of snapshots."""

    medium: int
    expert: int
    replay: list[int]


def at_levels(values: Sequence[float], levels: Sequence[float] | np.ndarray) -> list[int]:
    """For each level, 0 the worst and 1 the best, the nearest value's place; none is taken twice."""
    array = np.asarray(values)
    chosen: list[int] = []
    for level in levels:
        distance = np.abs(array - array.min() - level * (array.max() - array.min()))
        distance[chosen] = np.inf
        chosen.append(int(distance.argmin()))
    return chosen


def logging_indices(values: Sequence[float]) -> Logging:
    """The expert, the medium policy on the way to it, and snapshots up to the medium one."""
    array = np.asarray(values)
    best = int(array.argmax())
    level = array.min() + MEDIUM * (array.max() - array.min())
    medium = int(np.abs(array[: best + 1] - level).argmin())
    replay = np.unique(np.linspace(0, medium, REPLAY).round().astype(int))
    return Logging(medium, best, replay.tolist())


def logging_names(chosen: Logging, names: Mapping[int, str]) -> dict[str, object]:
    """As the suite reads them; an untrained policy begins the replay."""
    return {
        "random": "logging_random",
        "medium": names[chosen.medium],
        "expert": names[chosen.expert],
        "replay": ["logging_random", *(names[index] for index in chosen.replay)],
    }


def summary(values: np.ndarray) -> dict[str, float]:
    """Mean and standard error."""
    error = values.std(ddof=1) / np.sqrt(len(values))
    return {"value": round(float(values.mean()), 4), "standard_error": round(float(error), 4)}
