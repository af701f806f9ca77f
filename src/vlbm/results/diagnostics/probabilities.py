"""The probability that a policy is best, or better than another, from intervals and what is feasible."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from scipy.stats import norm

from vlbm.results.estimates import Estimates

DRAWS = 20_000
Bounds = tuple[float, float] | None  # what values can be at least and at most


def implied_standard_errors(estimates: Estimates) -> Float[np.ndarray, " policies"]:
    """The standard errors of normal distributions with the intervals shown, or the reported ones if larger.

    Intervals from few models or episodes use Student's t and are wider than their standard error suggests.
    """
    reach = float(norm.ppf((1 + estimates.confidence) / 2))
    shown = np.array([(row.upper - row.lower) / (2 * reach) for row in estimates])
    return np.maximum(shown, [row.standard_error for row in estimates])


def draw_values(
    values: Float[np.ndarray, " policies"],
    spread: Float[np.ndarray, " policies"],
    *,
    bounds: Bounds = None,
    draws: int = DRAWS,
    seed: int = 0,
) -> Float[np.ndarray, "draws policies"]:
    """Independent normal draws around every value; those beyond the bounds are drawn anew."""
    values, spread = np.asarray(values, np.float64), np.asarray(spread, np.float64)
    generator = np.random.default_rng(seed)
    if bounds is None:
        return values + spread * generator.standard_normal((draws, len(values)))
    unit = np.where(spread > 0, spread, 1.0)
    lowest, highest = (norm.cdf((bound - values) / unit) for bound in bounds)
    place = lowest + (highest - lowest) * generator.uniform(size=(draws, len(values)))
    drawn = np.where(spread > 0, values + spread * norm.ppf(place), values)
    return np.clip(drawn, *bounds)


def probability_best(
    values: Float[np.ndarray, " policies"],
    spread: Float[np.ndarray, " policies"],
    *,
    bounds: Bounds = None,
    draws: int = DRAWS,
    seed: int = 0,
) -> Float[np.ndarray, " policies"]:
    """How often each value is the largest under independent normal errors; ties are shared.

    With bounds the errors cannot leave what is feasible: a wide interval then says little, instead of
    promising more than can be earned.
    """
    drawn = draw_values(values, spread, bounds=bounds, draws=draws, seed=seed)
    first = drawn == drawn.max(axis=1, keepdims=True)
    return (first / first.sum(axis=1, keepdims=True)).mean(axis=0)


def pairwise_probabilities(
    values: Float[np.ndarray, " policies"],
    spread: Float[np.ndarray, " policies"],
    bounds: Bounds = None,
) -> Float[np.ndarray, "policies policies"]:
    """The probability that the value of the row exceeds that of the column, a half for itself."""
    if bounds is None:
        pairs = zip(values, spread, strict=True)
        found = np.stack([probability_above(values, spread, value=v, error=e) for v, e in pairs], axis=1)
    else:
        drawn = draw_values(values, spread, bounds=bounds)
        columns = [((drawn > part) + 0.5 * (drawn == part)).mean(axis=0) for part in drawn.T[:, :, None]]
        found = np.stack(columns, axis=1)
    np.fill_diagonal(found, 0.5)
    return found


def probability_above(
    values: Float[np.ndarray, " policies"],
    spread: Float[np.ndarray, " policies"],
    *,
    value: float,
    error: float,
    bounds: Bounds = None,
) -> Float[np.ndarray, " policies"]:
    """The probability that each value exceeds another one, under the same assumptions; ties count half."""
    if bounds is not None:
        both = np.append(np.asarray(values, np.float64), value), np.append(spread, error)
        return pairwise_probabilities(*both, bounds=bounds)[:-1, -1]
    difference, total = np.asarray(values) - value, np.sqrt(np.asarray(spread) ** 2 + error**2)
    certain = total == 0
    probability = norm.cdf(difference / np.where(certain, 1.0, total))
    return np.where(certain, 0.5 + 0.5 * np.sign(difference), probability)


def standard_error(returns: Float[np.ndarray, " episodes"]) -> float:
    """Of the mean of the returns."""
    return float(returns.std(ddof=1) / np.sqrt(len(returns))) if len(returns) > 1 else 0.0
