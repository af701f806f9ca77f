"""BehaviourRow: what the policy that logged the data earned, beside which estimates are read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from scipy.stats import t as student

from vlbm.data.episodes import Episodes
from vlbm.estimand import Estimand
from vlbm.results.feasible import clip_to_range, feasible_range

if TYPE_CHECKING:
    from vlbm.results.estimates import Estimates

NEGLIGIBLE = 0.01  # a discount below this hides what lies beyond


@dataclass(frozen=True)
class BehaviourRow:
    """The mean logged return over the steps and at the discount of an estimand, with its interval.

    It is observed, not estimated: actions are those that were logged.
    """

    value: float
    standard_error: float
    lower: float
    upper: float
    episodes: int


def summarise_behaviour(log: Episodes, estimand: Estimand, *, confidence: float) -> BehaviourRow | None:
    """None without a time limit where episodes were cut off before discounting hides the rest."""
    cut_off = log.length[~log.terminated]
    if estimand.horizon is None and (estimand.discount**cut_off > NEGLIGIBLE).any():
        return None
    returns = log.returns(estimand.discount, horizon=estimand.horizon)
    value, count = float(returns.mean()), len(returns)
    error = float(returns.std(ddof=1) / np.sqrt(count)) if count > 1 else 0.0
    reach = error * float(student.ppf((1 + confidence) / 2, max(count - 1, 1)))
    low, high = feasible_range(log, estimand)
    return BehaviourRow(value, error, max(value - reach, low), min(value + reach, high), count)


def hold_against_log(found: Estimates, log: Episodes, *, bounds: tuple[float, float]) -> Estimates:
    """Estimates within what is feasible, beside what the log itself earned."""
    return replace(
        found,
        rows=tuple(clip_to_range(row, *bounds) for row in found.rows),
        feasible=bounds,
        behaviour=summarise_behaviour(log, found.estimand, confidence=found.confidence),
    )


def keep_rewards(log: Episodes, *, most: int, seed: int = 0) -> Episodes:
    """The rewards of the log alone, of so many random episodes that they have about `most` steps.

    The smallest and the largest reward are always among them: they bound what can be earned.
    """
    chosen = np.arange(log.count)
    if log.steps > most:
        extremes = log.episode_of_step[[int(log.reward.argmin()), int(log.reward.argmax())]]
        order = np.random.default_rng(seed).permutation(log.count)
        few = order[: max(int((np.cumsum(log.length[order]) <= most).sum()), 1)]
        chosen = np.union1d(few, extremes)
    ends = log.first_step[chosen] + log.length[chosen]
    parts = [log.reward[begin:end] for begin, end in zip(log.first_step[chosen], ends, strict=True)]
    return only_rewards(np.concatenate(parts), log.length[chosen], log.terminated[chosen])


def only_rewards(reward: np.ndarray, length: np.ndarray, terminated: np.ndarray) -> Episodes:
    """Episodes of which nothing but rewards is known."""
    return Episodes(
        observation=np.zeros((len(reward) + len(length), 0), np.float32),
        action=np.zeros((len(reward), 0), np.float32),
        reward=np.asarray(reward, np.float32),
        length=np.asarray(length, np.int64),
        terminated=np.asarray(terminated, bool),
    )
