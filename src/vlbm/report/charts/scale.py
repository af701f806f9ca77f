"""Scale: numbers to coordinates, with round ticks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """Maps [low, high] to [start, end]; where low equals high, everything is in the middle."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        if self.high <= self.low:
            return (self.start + self.end) / 2
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self, count: int = 4) -> list[float]:
        """Round numbers within the scale, about `count` of them."""
        extent = self.high - self.low
        if extent <= 0 or not math.isfinite(extent):
            return [self.low]
        rough = extent / max(count, 1)
        size = 10.0 ** math.floor(math.log10(rough))
        step = min((1, 2, 2.5, 5, 10), key=lambda times: abs(times * size - rough)) * size
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        digits = max(0, 2 - math.floor(math.log10(step)))
        return [round(index * step, digits) for index in range(first, last + 1)]


def extent(values: Iterable[float], margin: float = 0.0) -> tuple[float, float]:
    """The range of the finite values, widened on both sides by a share of it; never empty."""
    finite = [float(value) for value in values if math.isfinite(value)]
    if not finite:
        return 0.0, 1.0
    low, high = min(finite), max(finite)
    if low == high:
        around = abs(low) * 0.1 or 1.0
        return low - around, high + around
    return low - margin * (high - low), high + margin * (high - low)
