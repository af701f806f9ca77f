"""Intervals: resampling logged episodes, and a bound that needs no large numbers."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float, UInt16
from scipy.stats import norm

from vlbm.results.estimate import CONFIDENCE, Estimate

BLOCK = 4_000_000  # numbers of resampling counts held at once
KEPT = 32_000_000  # of which so many, of two bytes each, are kept for the next policy
# Where the terms of the bound are cut off. All are tried at once, and the bound pays for the choice.
THRESHOLDS = 2.0 ** np.arange(0, 11)


class Quotients(NamedTuple):
    """A statistic that resampling can repeat: scale * sum over columns of sum(numerator) / sum(denominator).

    A column whose denominator sums to zero has the value in `otherwise`. A mean has one column with a
    denominator of ones; a self-normalised estimate has its weights there.
    """

    numerator: Float[np.ndarray, "episodes columns"]
    denominator: Float[np.ndarray, "episodes columns"]
    otherwise: Float[np.ndarray, " columns"]
    scale: float = 1.0

    @classmethod
    def mean(cls, terms: Float[np.ndarray, " episodes"]) -> Quotients:
        """The mean of a number for every episode."""
        return cls(terms[:, None], np.ones((len(terms), 1)), np.zeros(1))

    @property
    def value(self) -> float:
        return float(self._divide(self.numerator.sum(axis=0), self.denominator.sum(axis=0)))

    def resample(self, count: int, *, seed: int) -> Float[np.ndarray, " count"]:
        """The statistic of `count` collections of as many episodes, drawn with replacement."""
        parts = []
        for drawn in _count_draws(len(self.numerator), count, seed):
            times = drawn.astype(np.float64)
            parts.append(self._divide(times @ self.numerator, times @ self.denominator))
        return np.concatenate(parts)

    def leave_one_out(self) -> Float[np.ndarray, " episodes"]:
        """The statistic of all episodes but one, for each."""
        # Rounding must not turn a denominator of zero into a tiny number to divide by.
        denominator = np.maximum(self.denominator.sum(axis=0) - self.denominator, 0.0)
        return self._divide(self.numerator.sum(axis=0) - self.numerator, denominator)

    def _divide(self, numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
        usable = denominator > 0
        parts = np.where(usable, numerator / np.where(usable, denominator, 1.0), self.otherwise)
        return self.scale * parts.sum(axis=-1)


def _count_draws(episodes: int, count: int, seed: int) -> Iterable[UInt16[np.ndarray, "rows episodes"]]:
    """How often each episode was drawn, for some of the collections at a time."""
    few = episodes * count <= KEPT
    return _cache_draws(episodes, count, seed) if few else _generate_draws(episodes, count, seed)


@functools.lru_cache(maxsize=1)
def _cache_draws(episodes: int, count: int, seed: int) -> tuple[UInt16[np.ndarray, "rows episodes"], ...]:
    # All policies of an evaluation have the same draws, and making them takes longer than all else.
    return tuple(_generate_draws(episodes, count, seed))


def _generate_draws(episodes: int, count: int, seed: int) -> Iterator[UInt16[np.ndarray, "rows episodes"]]:
    generator = np.random.default_rng(seed)
    for first in range(0, count, max(BLOCK // episodes, 1)):
        rows = min(max(BLOCK // episodes, 1), count - first)
        drawn = generator.integers(episodes, size=(rows, episodes)) + episodes * np.arange(rows)[:, None]
        times = np.bincount(drawn.ravel(), minlength=rows * episodes).reshape(rows, episodes)
        # The chance that one of them is drawn more often than these numbers reach is none.
        yield times.astype(np.uint16)


class Interval(NamedTuple):
    standard_error: float
    lower: float
    upper: float

    def include(self, value: float) -> Interval:
        """Wide enough to hold the value itself."""
        return self._replace(lower=min(self.lower, value), upper=max(self.upper, value))

    def include_shifted(self, shift: float) -> Interval:
        """Wide enough to hold the same interval at another place too."""
        return self._replace(
            lower=min(self.lower, self.lower + shift), upper=max(self.upper, self.upper + shift)
        )


def estimate_from(
    interval: Interval,
    *,
    policy: str,
    value: float,
    warnings: Sequence[str],
    details: Mapping[str, float],
    returns: Float[np.ndarray, " episodes"] | None = None,
    length: float | None = None,
) -> Estimate:
    """An estimate with this interval; methods that only know averages leave returns and length out."""
    return Estimate(
        policy, value, *interval, returns=returns, length=length, warnings=tuple(warnings), details=details
    )


def from_bounds(lower: float, upper: float, *, confidence: float = CONFIDENCE) -> Interval:
    """An interval given by its ends, with the standard error that a normal estimate would have."""
    return Interval((upper - lower) / (2 * float(norm.ppf((1 + confidence) / 2))), lower, upper)


def bootstrap(
    statistic: Quotients,
    *,
    resamples: int,
    confidence: float = CONFIDENCE,
    seed: int,
    kind: Literal["bca", "percentile"] = "bca",
) -> Interval:
    """An interval from resampled episodes: quantiles as they are, or corrected for bias and skew (BCa)."""
    # In units of the scale, so that squares of huge weights do not overflow.
    unit = statistic._replace(scale=1.0)
    values = np.sort(unit.resample(resamples, seed=seed))
    tails = np.array([(1 - confidence) / 2, (1 + confidence) / 2])
    if kind == "bca" and len(statistic.numerator) > 1:
        tails = _correct_tails(tails, values, unit)
    lower, upper = np.quantile(values, tails) * statistic.scale
    spread = float(values.std(ddof=1)) * statistic.scale if resamples > 1 else 0.0
    return Interval(spread, float(min(lower, statistic.value)), float(max(upper, statistic.value)))


def _correct_tails(tails: np.ndarray, values: np.ndarray, statistic: Quotients) -> np.ndarray:
    count = len(values)
    # Ties count half; a share of 0 or 1 would shift the quantiles to infinity.
    below = (
        np.searchsorted(values, statistic.value, "left") + np.searchsorted(values, statistic.value, "right")
    ) / 2
    shift = norm.ppf(np.clip(below / count, 1 / (count + 1), count / (count + 1)))
    left_out = statistic.leave_one_out()
    influence = left_out.mean() - left_out
    spread = (influence**2).sum()
    skew = (influence**3).sum() / (6 * spread**1.5) if spread > 0 else 0.0
    moved = shift + norm.ppf(tails)
    return norm.cdf(shift + moved / (1 - skew * moved))


def bernstein(
    weight: Float[np.ndarray, " episodes"],
    returns: Float[np.ndarray, " episodes"],
    *,
    bounds: tuple[float, float],
    confidence: float = CONFIDENCE,
) -> Interval:
    """An interval that holds for any number of episodes, if returns lie within `bounds`.

    Weighted distances of the returns from a bound are positive, so cutting the large ones off only
    lowers their mean: an empirical-Bernstein bound (Maurer and Pontil, 2009) on the mean of what is
    left bounds the value from below; distances from the upper bound bound it from above. It needs
    true log-probabilities, by which weights average to one.
    """
    low, high = bounds
    width = high - low
    if len(weight) < 2 or width == 0:
        return from_bounds(low, high, confidence=confidence)
    above = _bound_mean_from_below(weight * (returns - low) / width, confidence)
    below = _bound_mean_from_below(weight * (high - returns) / width, confidence)
    lower, upper = low + width * min(above, 1.0), high - width * min(below, 1.0)
    if lower > upper:  # the two bounds contradict each other: the weights do not average to one
        return from_bounds(low, high, confidence=confidence)
    return from_bounds(lower, upper, confidence=confidence)


def _bound_mean_from_below(terms: Float[np.ndarray, " episodes"], confidence: float) -> float:
    """A lower bound on the mean of positive terms, with half of the error allowed to the interval."""
    count = len(terms)
    cut = np.minimum(terms[:, None], THRESHOLDS)
    log_inverse = np.log(2 / ((1 - confidence) / 2 / len(THRESHOLDS)))
    margin = np.sqrt(2 * cut.var(axis=0, ddof=1) * log_inverse / count) + 7 * THRESHOLDS * log_inverse / (
        3 * (count - 1)
    )
    return max(float((cut.mean(axis=0) - margin).max()), 0.0)
