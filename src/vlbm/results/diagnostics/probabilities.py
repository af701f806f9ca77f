"""The probability that a policy is best, or better than the behaviour policy, from the intervals."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from scipy.stats import norm

from vlbm.results.estimate import Estimates

DRAWS = 20_000


def implied_standard_errors(estimates: Estimates) -> Float[np.ndarray, " policies"]:
    """The standard errors of normal distributions with the intervals shown, or the reported ones if larger.

    Intervals from few models or episodes use Student's t and are wider than their standard error suggests.
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
    """How often each value is the largest under independent normal errors; ties are shared."""
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
    """The probability that each value exceeds another one, under the same assumptions; ties count half."""
    difference, total = np.asarray(values) - value, np.sqrt(np.asarray(spread) ** 2 + error**2)
    certain = total == 0
    probability = norm.cdf(difference / np.where(certain, 1.0, total))
    return np.where(certain, 0.5 + 0.5 * np.sign(difference), probability)


def standard_error(returns: Float[np.ndarray, " episodes"]) -> float:
    """Of the mean of the returns."""
    return float(returns.std(ddof=1) / np.sqrt(len(returns))) if len(returns) > 1 else 0.0
