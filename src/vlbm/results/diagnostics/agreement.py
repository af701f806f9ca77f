"""Whether methods agree in level: equal rankings can hide values that are far apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

APART = 0.2  # of the range of all values: a mean difference from here on is reported


@dataclass(frozen=True)
class LevelGap:
    """How far another method's values are from those of one."""

    other: str
    difference: float  # mean absolute difference over the policies that both estimate
    shift: float  # the same with its sign: above 0, the other method's values are higher
    extent: float  # from the smallest to the largest value of both

    @property
    def share(self) -> float:
        """Of the extent; 0 where all values are equal."""
        return self.difference / self.extent if self.extent > 0 else 0.0

    @property
    def one_sided(self) -> bool:
        """Whether nearly all values differ in the same direction."""
        return abs(self.shift) > 0.9 * self.difference


def find_level_gaps(
    method: str, values: Mapping[str, Float[np.ndarray, " policies"]]
) -> tuple[LevelGap, ...]:
    """From one method to every other, the largest first; policies without a value (NaN) are left out."""
    gaps = []
    for other in values:
        difference = values[other] - values[method]
        both = np.isfinite(difference)
        if other == method or not both.any():
            continue
        extent = float(np.ptp(np.concatenate([values[other][both], values[method][both]])))
        difference = difference[both]
        gaps.append(LevelGap(other, float(np.abs(difference).mean()), float(difference.mean()), extent))
    return tuple(sorted(gaps, key=lambda gap: -gap.share))
