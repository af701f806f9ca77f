"""How likely a policy is the best, or better than what was logged, as far as the intervals tell."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from scipy.stats import norm

from vlbm.results.estimate import Estimates

DRAWS = 20_000


def spreads(estimates: Estimates) -> Float[np.ndarray, " policies"]:
    """The standard deviation that a normal error would have with the interval that is shown.

    Intervals from few models or few episodes are wider than their standard error says; the wider of
    the two counts.
    """
    reach = float(norm.ppf((1 + estimates.confidence) / 2))
    shown = np.array([(row.upper - row.lower) / (2 * reach) for row in estimates])
    return np.maximum(shown, [row.standard_error for row in estimates])


def probability_best(
    values: Float[np.ndarray, " policies"],
    spread: Float[np.ndarray, " policies"],
    *,
    draws: int = DRAWS,
    seed: int = 0,
) -> Float[np.ndarray, " policies"]:
    """How often each value is the largest, if errors are normal and independent; ties are shared."""
    generator = np.random.default_rng(seed)
    drawn = values + spread * generator.standard_normal((draws, len(values)))
    first = drawn == drawn.max(axis=1, keepdims=True)
    return (first / first.sum(axis=1, keepdims=True)).mean(axis=0)


def probability_above(
    values: Float[np.ndarray, " policies"],
    spread: Float[np.ndarray, " policies"],
    *,
    value: float,
    error: float,
) -> Float[np.ndarray, " policies"]:
    """How likely each value exceeds another, under the same assumptions; equal and certain counts half."""
    difference, total = np.asarray(values) - value, np.sqrt(np.asarray(spread) ** 2 + error**2)
    certain = total == 0
    chance = norm.cdf(difference / np.where(certain, 1.0, total))
    return np.where(certain, 0.5 + 0.5 * np.sign(difference), chance)


def standard_error(returns: Float[np.ndarray, " episodes"]) -> float:
    """Of the mean of the returns."""
    return float(returns.std(ddof=1) / np.sqrt(len(returns))) if len(returns) > 1 else 0.0
