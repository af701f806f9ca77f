"""Which snapshots of training become targets and which become logging policies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

REPLAY = 8  # snapshots that stand for a training run up to the medium policy
WIDE = 0.25  # of the range: gaps between true returns that are filled
TRIES = 6
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


def without_gaps(chosen: Sequence[int], rough: Sequence[float], measure: Callable[[int], float]) -> list[int]:
    """The chosen places in the order of their measured values, with wide gaps between these filled.

    Rough values can be far off. Where the measured ones leave a gap, another place whose rough value
    lies in it is measured; if it does lie there, it replaces the one that is missed least.
    """
    value = {index: measure(index) for index in chosen}
    for _ in range(TRIES):
        order = sorted((index for index in value if index in set(chosen)), key=lambda index: value[index])
        levels = np.array([value[index] for index in order])
        gap = int(np.diff(levels).argmax())
        if np.diff(levels)[gap] < WIDE * np.ptp(levels):
            break
        low, high = levels[gap], levels[gap + 1]
        spare = [index for index in range(len(rough)) if index not in value and low < rough[index] < high]
        if not spare:
            break
        found = min(spare, key=lambda index: abs(rough[index] - (low + high) / 2))
        value[found] = measure(found)
        if low < value[found] < high:
            # The ends stay; of the others, the one whose neighbours are nearest to each other goes.
            missed = 1 + int((levels[2:] - levels[:-2]).argmin())
            chosen = [*order[:missed], *order[missed + 1 :], found]
    return sorted(chosen, key=lambda index: value[index])


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
