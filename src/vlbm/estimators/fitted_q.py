"""FittedQ: values and intervals by trained critics, and what speaks against them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float

from vlbm.estimators.intervals import Quotients, bootstrap, estimate_from
from vlbm.estimators.transitions import Problem
from vlbm.results.diagnostics.trust import OUTSIDE, action_warnings
from vlbm.results.estimate import Estimate

UNSOLVED = 0.1  # of the value, or of the spread of values: a larger correction is warned of


@dataclass(frozen=True, eq=False)
class FittedQ:
    """Q and V of several policies on the log."""

    problem: Problem
    names: tuple[str, ...]
    q: Float[np.ndarray, "policies steps"]  # of logged actions within the horizon
    v: Float[np.ndarray, "policies rows"]  # of every logged observation
    weight: Float[np.ndarray, "policies steps"]  # the influence of logged steps
    change: Float[np.ndarray, " policies"]  # of the value, by the last round
    converged: Bool[np.ndarray, " policies"]
    unit: float  # the spread of values
    outside: Float[np.ndarray, " policies"]  # share of a policy's actions that are unlike logged ones
    interrupted: bool

    @cached_property
    def residual(self) -> Float[np.ndarray, "policies steps"]:
        """The Bellman residual r + discount * V(s') - Q(s, a) of every logged step."""
        problem = self.problem
        return problem.reward + problem.continuation * self.v[:, problem.before + 1] - self.q

    def value(self, index: int) -> float:
        """The mean of V over logged initial observations."""
        return float(self.v[index, self.problem.log.first_observation].mean())

    def correction(self, index: int) -> float:
        """By how much the value would move if the Bellman equation held for all that Q is linear in."""
        return float((self.weight[index] * self.residual[index]).mean())

    def warnings(self, name: str) -> tuple[str, ...]:
        """What speaks against the value of a policy."""
        index = self.names.index(name)
        found = list(action_warnings(float(self.outside[index])))
        correction = self.correction(index)
        if abs(correction) > UNSOLVED * max(abs(self.value(index)), self.unit):
            found.append(
                f"Q does not solve its equation: solved on its last layer, the value would move by "
                f"{correction:.3g}; the interval holds that"
            )
        if not self.converged[index] and not self.interrupted:
            found.append(
                f"Q has not settled: the last round of training moved the value by {self.change[index]:.3g}; "
                "give it more rounds, or do not trust it"
            )
        return tuple(found)

    def estimate(self, name: str, *, resamples: int, confidence: float, seed: int) -> Estimate:
        """The value of a policy; its interval resamples V(s_0) plus weighted Bellman residuals."""
        index, problem = self.names.index(name), self.problem
        value, correction, change = self.value(index), self.correction(index), float(self.change[index])
        weight = self.weight[index] * (problem.log.count / len(problem.step))
        weighted = problem.sum_episodes(weight * self.residual[index])
        terms = self.v[index, problem.log.first_observation] + weighted - correction
        interval = bootstrap(
            Quotients.mean(terms), resamples=resamples, confidence=confidence, seed=seed
        ).include(value)
        interval = interval.include_shifted(problem.clip_shift(value, correction))
        # Resampling knows nothing of how far training still was from its end.
        interval = interval.include_shifted(change).include_shifted(-change)
        return estimate_from(
            interval,
            policy=name,
            value=value,
            warnings=self.warnings(name),
            details={
                "bellman_residual": float(np.sqrt((self.residual[index] ** 2).mean())),
                "residual_correction": correction,
                "last_change": change,
                OUTSIDE: float(self.outside[index]),
            },
        )
