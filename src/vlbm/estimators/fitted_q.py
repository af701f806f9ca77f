"""What trained critics say of policies, how sure that is, and what speaks against it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from vlbm.estimators.intervals import Quotients, bootstrap
from vlbm.estimators.transitions import Problem
from vlbm.results.diagnostics.trust import OUTSIDE, action_warnings
from vlbm.results.estimate import Estimate

UNBALANCED = 0.1  # of the value, or of the spread of values: a larger correction is warned of


@dataclass(frozen=True, eq=False)
class FittedQ:
    """What the trained critics of several policies say of the log."""

    problem: Problem
    names: tuple[str, ...]
    q: Float[np.ndarray, "policies steps"]  # of logged actions within the horizon
    v: Float[np.ndarray, "policies rows"]  # of every logged observation
    weight: Float[np.ndarray, "policies steps"]  # the influence of logged steps
    change: Float[np.ndarray, " policies"]  # of the value, by the last round
    settled: Bool[np.ndarray, " policies"]
    unit: float  # the spread of values
    outside: Float[np.ndarray, " policies"]  # share of a policy's actions that are unlike logged ones
    interrupted: bool

    @property
    def residual(self) -> Float[np.ndarray, "policies steps"]:
        """How far Q is from what it should be by the Bellman equation."""
        log, step = self.problem.episodes, self.problem.step
        return (
            log.reward[step]
            + self.problem.continuation * self.v[:, log.observation_before[step] + 1]
            - self.q
        )

    def correction(self, index: int) -> float:
        """By how much the value would move if the Bellman equation held for all that Q is linear in."""
        return float((self.weight[index] * self.residual[index]).mean())

    def warnings(self, name: str) -> tuple[str, ...]:
        """What speaks against the value of a policy."""
        index = self.names.index(name)
        found = list(action_warnings(float(self.outside[index])))
        value = float(self.v[index, self.problem.episodes.first_observation].mean())
        correction = self.correction(index)
        if abs(correction) > UNBALANCED * max(abs(value), self.unit):
            found.append(
                f"Q does not solve its equation: solved on its last layer, the value would move by "
                f"{correction:.3g}; the interval holds that"
            )
        if not self.settled[index] and not self.interrupted:
            found.append(
                f"Q has not settled: the last round of training moved the value by {self.change[index]:.3g}; "
                "give it more rounds, or do not trust it"
            )
        return tuple(found)

    def estimate(self, name: str, *, resamples: int, confidence: float, seed: int) -> Estimate:
        """The mean of V over logged beginnings."""
        index, log, step = self.names.index(name), self.problem.episodes, self.problem.step
        beginnings, residual = self.v[index, log.first_observation], self.residual[index]
        value = float(beginnings.mean())
        weight = self.weight[index] * (log.count / len(step))
        weighted = np.bincount(log.episode_of_step[step], weight * residual, log.count)
        correction = self.correction(index)
        terms = (beginnings + weighted - correction)[:, None]
        statistic = Quotients(terms, np.ones_like(terms), np.zeros(1))
        interval = bootstrap(statistic, resamples=resamples, confidence=confidence, seed=seed).around(value)
        low, high = self.problem.value_range(np.zeros(1, int))
        reach = float(np.clip(value + correction, min(low[0], value), max(high[0], value))) - value
        # Resampling knows nothing of how far training still was from its end.
        change = float(self.change[index])
        interval = interval.reaching(reach).reaching(change).reaching(-change)
        return Estimate(
            policy=name,
            value=value,
            standard_error=interval.standard_error,
            lower=interval.lower,
            upper=interval.upper,
            returns=None,  # V is an average: how returns spread around it is never seen
            length=None,
            warnings=self.warnings(name),
            details={
                "bellman_residual": float(np.sqrt((residual**2).mean())),
                "residual_correction": correction,
                "last_change": float(self.change[index]),
                OUTSIDE: float(self.outside[index]),
            },
        )
