"""Seconds of a training step, taken from an ordinary fit: whatever vlbm does there is in them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from measure import smooth_logs
from timing import clock

from vlbm.estimators.world_models.vlbm import VLBM
from vlbm.nn import training
from vlbm.progress import Progress, Report

STRETCH = 10  # steps that are timed together


class Watch(Progress):
    """Notes when every stretch of training was done."""

    def __init__(self) -> None:
        self.moments: list[tuple[int, float]] = []

    @contextmanager
    def task(self, *, total: int, done: int = 0, title: str = "") -> Iterator[Report]:
        yield lambda done, terms: self.moments.append((done, clock()))

    def rate(self) -> float:
        """Steps a second after the first stretch."""
        (before, early), (after, late) = self.moments[0], self.moments[-1]
        return (after - before) / (late - early)


def step_seconds(settings: VLBM, *, steps: int = 40) -> float:
    """Of the fastest stretch, on data of HalfCheetah's sizes; the first compiles, the last validates."""
    watch = Watch()
    training.FEWEST = training.MOST = STRETCH
    settings = replace(settings, models=1, keep=None, steps=steps, validate_every=steps, warm_up=0)
    settings.fit(smooth_logs(episodes=64, length=200), progress=watch)
    pairs = list(zip(watch.moments, watch.moments[1:], strict=False))[:-1]
    return min((late - early) / (after - before) for (before, early), (after, late) in pairs)
