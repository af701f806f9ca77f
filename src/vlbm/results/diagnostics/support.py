"""Where the log has data: which imagined steps lie farther from logged ones than logged ones do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from jaxtyping import Bool, Float, Int

from vlbm.data.episodes import Episodes
from vlbm.data.scaler import CONSTANT

QUANTILE = 0.99  # of the distances that logged steps have from the steps of other episodes
POOL = 100_000  # logged steps that are looked at
REFERENCES = 4000
HELD_OUT = 2000
BLOCK = 4_000_000  # distances held at once


@dataclass(frozen=True, eq=False)
class Support:
    """Logged steps to measure distances from, in standard deviations of observations and actions.

    Ids of discrete actions stand as one-hot vectors: another action is about as far away as one and a
    half standard deviations of an observation.
    """

    references: Float[np.ndarray, "references features"]
    centre: Float[np.ndarray, " features"]
    scale: Float[np.ndarray, " features"]
    reach: Float[np.ndarray, ""]  # the distance that `QUANTILE` of held-out logged steps stay within

    @classmethod
    def of(cls, logged: Episodes, *, seed: int = 0) -> Self:
        """References from most of the episodes; the reach is measured on the others."""
        generator = np.random.default_rng(seed)
        pool = some_of(np.arange(logged.steps), POOL, generator)
        steps = features(logged, pool)
        centre, scale = steps.mean(axis=0), steps.std(axis=0)
        scale = np.where(scale > CONSTANT * np.maximum(1.0, np.abs(centre)), scale, 1.0)
        if logged.discrete:
            scale[logged.observation_size :] = 1.0
        if logged.count > 1:
            order = generator.permutation(logged.count)
            apart = np.isin(logged.episode_of_step[pool], order[: max(logged.count // 4, 1)])
        else:  # steps of one episode must do; every other one is left out
            apart = pool % 2 == 1
        references = some_of(np.flatnonzero(~apart), REFERENCES, generator)
        measured = some_of(np.flatnonzero(apart), HELD_OUT, generator)
        support = cls((steps[references] - centre) / scale, centre, scale, np.zeros(()))
        distance = support.distance(steps[measured if len(measured) else references])
        return cls(support.references, centre, scale, np.asarray(np.quantile(distance, QUANTILE)))

    @classmethod
    def empty(cls, references: int, columns: int) -> Self:
        """Of the right shape to load a saved one into."""
        zeros = np.zeros(columns)
        return cls(np.zeros((references, columns)), zeros, zeros, np.zeros(()))

    def distance(self, steps: Float[np.ndarray, "rows features"]) -> Float[np.ndarray, " rows"]:
        """From every step to the nearest reference."""
        scaled = (np.asarray(steps, np.float64) - self.centre) / self.scale
        norms = (self.references**2).sum(axis=1)
        found = np.empty(len(scaled))
        rows = max(BLOCK // len(self.references), 1)
        # A tree of places gains nothing in the dozens of dimensions that robots have.
        for first in range(0, len(scaled), rows):
            part = scaled[first : first + rows]
            squared = norms - 2.0 * part @ self.references.T
            found[first : first + rows] = squared.min(axis=1) + (part**2).sum(axis=1)
        return np.sqrt(np.maximum(found, 0.0))

    def outside(self, steps: Float[np.ndarray, "rows features"]) -> Bool[np.ndarray, " rows"]:
        """Which steps lie farther from the log than nearly all logged steps do."""
        return self.distance(steps) > self.reach + 1e-9

    def outside_share(self, episodes: Episodes, *, most: int = 1500) -> float:
        """The share of an episode collection's steps that lie outside, from at most so many of them."""
        chosen = some_of(np.arange(episodes.steps), most, np.random.default_rng(0))
        return float(self.outside(features(episodes, chosen)).mean())

    def outside_shares(
        self,
        observation: Float[np.ndarray, "rows obs"],
        action: Float[np.ndarray, "rows policies act"],
        *,
        discrete: bool,
    ) -> Float[np.ndarray, " policies"]:
        """Of what every policy would do at these observations, the share that lies outside.

        Discrete actions come as probabilities, and each of them lies within or outside.
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
    """What steps are compared by: the observation that the action answered, and the action."""
    observation = episodes.observation[episodes.observation_before[steps]]
    action = episodes.action[steps]
    vectors = action if episodes.n_actions is None else np.eye(episodes.n_actions)[action]
    return np.concatenate([observation, vectors], axis=1).astype(np.float64)


def some_of(
    rows: Int[np.ndarray, " rows"], most: int, generator: np.random.Generator
) -> Int[np.ndarray, " chosen"]:
    """All rows, or so many drawn from them, in their order."""
    return rows if len(rows) <= most else np.sort(generator.choice(rows, most, replace=False))
