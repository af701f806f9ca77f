"""What rewards like the logged ones can add up to, and estimates kept within it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

from vlbm.data.episodes import Episodes
from vlbm.estimand import Estimand

if TYPE_CHECKING:
    from vlbm.results.estimate import Estimate

UNCLIPPED = "unclipped_value"  # key of what the method itself said, in an estimate's details
ROUNDING = 1e-5  # relative to the larger bound: single precision adds up to that
SLIGHT = 0.01  # a value is cut by less than this without a warning


def sum_discounts(discount: float, steps: int | Int[np.ndarray, " rows"] | None) -> Any:
    """The sum of as many discounts; of endlessly many without `steps`."""
    if steps is None:
        return 1 / (1 - discount)
    left = np.maximum(steps, 0).astype(np.float64)
    return left if discount == 1 else (1 - discount**left) / (1 - discount)


def bound_returns(
    lowest: float, highest: float, total: Float[np.ndarray, " rows"], *, can_end: bool
) -> tuple[np.ndarray, np.ndarray]:
    """The least and the most that rewards within a range add up to; `total` is the sum of their discounts.

    Where episodes can end, they can end after one step.
    """
    least = np.minimum(total, 1.0) if can_end else total
    return np.minimum(lowest * total, lowest * least), np.maximum(highest * total, highest * least)


def feasible_range(log: Episodes, estimand: Estimand, *, can_end: bool = False) -> tuple[float, float]:
    """The least and the most that the estimand can be if all rewards are like logged ones.

    Episodes can end early where logged ones did or were cut off before the horizon (what was not recorded
    counts as nothing in logged returns), or where a rule says so.
    """
    horizon = estimand.horizon
    cut_short = horizon is not None and int(log.length.min()) < horizon
    low, high = bound_returns(
        float(log.reward.min()),
        float(log.reward.max()),
        np.asarray(sum_discounts(estimand.discount, horizon)),
        can_end=can_end or cut_short or bool(log.terminated.any()),
    )
    return float(low), float(high)


def clip_to_range(row: Estimate, low: float, high: float) -> Estimate:
    """The same estimate within what is possible.

    A value beyond a bound is off by at least its distance from it: the interval then reaches as far the
    other way, and the standard error is no smaller.
    """
    value = min(max(row.value, low), high)
    excess, scale = abs(row.value - value), max(abs(low), abs(high))
    clipped = replace(
        row,
        value=value,
        standard_error=min(max(row.standard_error, excess), (high - low) / 2),
        lower=min(max(min(row.lower, value - excess), low), high),
        upper=min(max(max(row.upper, value + excess), low), high),
    )
    if excess <= ROUNDING * scale:
        return clipped
    clipped = replace(clipped, details={**row.details, UNCLIPPED: row.value})
    if excess <= SLIGHT * scale:
        return clipped
    text = (
        f"the value found, {row.value:.5g}, is impossible: rewards like the logged ones add up to "
        f"{low:.5g} at least and {high:.5g} at most; {value:.5g} is given instead"
    )
    return replace(clipped, warnings=(text, *row.warnings))
