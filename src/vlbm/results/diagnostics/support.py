"""Support of the log: which steps lie farther from logged steps than held-out logged steps do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from jaxtyping import Bool, Float, Int

from vlbm.data.episodes import Episodes
from vlbm.data.scaler import CONSTANT

QUANTILE = 0.99  # of the distances that logged steps have from the steps of other episodes
POOL = 100_000  # logged steps that are sampled
REFERENCES = 4000
HELD_OUT = 2000
BLOCK = 4_000_000  # distances held at once


@dataclass(frozen=True, eq=False)
class Support:
    """Nearest-neighbour distances to logged steps, in standard deviations of observations and actions.

    Discrete actions are one-hot, so two different actions are a distance of sqrt(2) apart.
    """

    references: Float[np.ndarray, "references features"]
    centre: Float[np.ndarray, " features"]
    scale: Float[np.ndarray, " features"]
    reach: Float[np.ndarray, ""]  # the distance that `QUANTILE` of held-out logged steps stay within

    @classmethod
    def of(cls, logged: Episodes, *, seed: int = 0) -> Self:
        """References from most of the episodes; the reach is measured on the others."""
        generator = np.random.default_rng(seed)
        pool = subsample(np.arange(logged.steps), POOL, generator)
        steps = features(logged, pool)
        centre, scale = steps.mean(axis=0), steps.std(axis=0)
        scale = np.where(scale > CONSTANT * np.maximum(1.0, np.abs(centre)), scale, 1.0)
        if logged.discrete:
            scale[logged.observation_size :] = 1.0
        if logged.count > 1:
            order = generator.permutation(logged.count)
            apart = np.isin(logged.episode_of_step[pool], order[: max(logged.count // 4, 1)])
        else:  # a single episode: every other step is held out
            apart = pool % 2 == 1
        references = subsample(np.flatnonzero(~apart), REFERENCES, generator)
        measured = subsample(np.flatnonzero(apart), HELD_OUT, generator)
        support = cls((steps[references] - centre) / scale, centre, scale, np.zeros(()))
        distance = support.distance(steps[measured if len(measured) else references])
        return cls(support.references, centre, scale, np.asarray(np.quantile(distance, QUANTILE)))

    @classmethod
    def empty(cls, references: int, columns: int) -> Self:
        """A template of the right shape for `load_tree`."""
        zeros = np.zeros(columns)
        return cls(np.zeros((references, columns)), zeros, zeros, np.zeros(()))

    def distance(self, steps: Float[np.ndarray, "rows features"]) -> Float[np.ndarray, " rows"]:
        """The distance from every step to the nearest reference."""
        scaled = (np.asarray(steps, np.float64) - self.centre) / self.scale
        norms = (self.references**2).sum(axis=1)
        found = np.empty(len(scaled))
        rows = max(BLOCK // len(self.references), 1)
        # Brute force: a k-d tree is no faster in dozens of dimensions.
        for first in range(0, len(scaled), rows):
            part = scaled[first : first + rows]
            squared = norms - 2.0 * part @ self.references.T
            found[first : first + rows] = squared.min(axis=1) + (part**2).sum(axis=1)
        return np.sqrt(np.maximum(found, 0.0))

    def outside(self, steps: Float[np.ndarray, "rows features"]) -> Bool[np.ndarray, " rows"]:
        """Which steps lie outside the support."""
        return self.distance(steps) > self.reach + 1e-9

    def outside_share(self, episodes: Episodes, *, most: int = 1500) -> float:
        """The share of steps outside the support, from a sample of at most `most` steps."""
        chosen = subsample(np.arange(episodes.steps), most, np.random.default_rng(0))
        return float(self.outside(features(episodes, chosen)).mean())

    def outside_shares(
        self,
        observation: Float[np.ndarray, "rows obs"],
        action: Float[np.ndarray, "rows policies act"],
        *,
        discrete: bool,
    ) -> Float[np.ndarray, " policies"]:
        """For every policy, the share of its actions at these observations that lie outside the support.

        Discrete actions are given as probabilities.
        """
        if discrete:
            ids = np.eye(action.shape[2])
            outside = np.stack([self.outside(_join(observation, one)) for one in ids], axis=1)
            return np.einsum("rpa,ra->p", action, outside) / len(observation)
        each = [self.outside(_join(observation, action[:, index])) for index in range(action.shape[1])]
        return np.mean(each, axis=1)


def _join(observation: np.ndarray, action: np.ndarray) -> Float[np.ndarray, "rows features"]:
    return np.concatenate(
        [observation, np.broadcast_to(action, (len(observation), action.shape[-1]))], axis=1
    )


def features(
    episodes: Episodes, steps: Int[np.ndarray, " rows"] | slice = slice(None)
) -> Float[np.ndarray, "rows features"]:
    """The observation and the action of each step, side by side."""
    observation = episodes.observation[episodes.observation_before[steps]]
    action = episodes.action[steps]
    vectors = action if episodes.n_actions is None else np.eye(episodes.n_actions)[action]
    return np.concatenate([observation, vectors], axis=1).astype(np.float64)


def subsample(
    rows: Int[np.ndarray, " rows"], most: int, generator: np.random.Generator
) -> Int[np.ndarray, " chosen"]:
    """All rows, or a sorted random sample of `most` of them."""
    return rows if len(rows) <= most else np.sort(generator.choice(rows, most, replace=False))
