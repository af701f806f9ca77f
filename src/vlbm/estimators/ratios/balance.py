"""What ratios must balance, and what they make policies worth."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float, Int

from vlbm.estimators.critics.bellman import Problem
from vlbm.estimators.intervals import Quotients


@dataclass(frozen=True, eq=False)
class Balance:
    """What begins must end: how much of everything ends at every step, and what a ratio of 1 means.

    At a step, 1 - discount of everything ends where the episode goes on, and all of it where it does not.
    The mean of that is `share`: ratios of 1 let `share` of everything begin, and as much end.
    """

    problem: Problem
    goes_on: Float[np.ndarray, " steps"]
    self_normalised: bool  # whether values are divided by how much really ends
    stationary: bool  # whether sound ratios average 1 by themselves, or when weighted by what ends

    @cached_property
    def ending(self) -> Float[np.ndarray, " steps"]:
        return 1.0 - self.problem.discount * self.goes_on

    @cached_property
    def share(self) -> float:
        share = float(self.ending[self.problem.usable].mean())
        if share > 0:
            return share
        # Undiscounted, and no logged episode reached its end: only the horizon is known to end them.
        return 1 / (self.problem.horizon or 1)

    @cached_property
    def otherwise(self) -> float:
        """What a policy is worth whose ratios are all 1."""
        return float(self.problem.episodes.reward[self.problem.usable].mean(dtype=np.float64)) / self.share

    def values(
        self, ratio: Float[np.ndarray, "policies steps"], steps: Int[np.ndarray, " steps"]
    ) -> Float[np.ndarray, " policies"]:
        """What every policy is worth if these are its ratios at these steps."""
        earned = ratio @ self.problem.episodes.reward[steps].astype(np.float64)
        ended = self.ended(ratio, steps)
        usable = ended > 0
        return np.where(usable, earned / np.where(usable, ended, 1.0), self.otherwise)

    def ended(
        self, ratio: Float[np.ndarray, "policies steps"], steps: Int[np.ndarray, " steps"]
    ) -> Float[np.ndarray, " policies"]:
        """What values are divided by: how much ends by these ratios, or how much must."""
        return (
            ratio @ self.ending[steps]
            if self.self_normalised
            else np.full(len(ratio), self.share * len(steps))
        )

    def mean_ratio(self, ratio: Float[np.ndarray, " usable"]) -> float:
        """How much ends of what begins, or the plain mean; 1 for sound ratios."""
        if self.stationary:
            return float(ratio.mean())
        return float((ratio * self.ending[self.problem.usable]).mean()) / self.share

    def terms(self, ratio: Float[np.ndarray, " usable"]) -> Quotients:
        """What every episode contributes to the value."""
        episodes, usable = self.problem.episodes, self.problem.usable

        def summed(weight: np.ndarray) -> np.ndarray:
            return np.bincount(episodes.episode_of_step[usable], weight, minlength=episodes.count)[:, None]

        ended = ratio * self.ending[usable] if self.self_normalised else np.full(len(usable), self.share)
        return Quotients(summed(ratio * episodes.reward[usable]), summed(ended), np.array([self.otherwise]))
