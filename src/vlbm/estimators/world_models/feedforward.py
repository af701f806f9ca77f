"""FeedForward: the settings of the feed-forward ensemble."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
from jaxtyping import PRNGKeyArray

from vlbm.estimators.world_models.transition import TransitionModel
from vlbm.worlds.feedforward import EnsembleImagination, EnsembleKind, FeedForwardWorld, Member


@dataclass(frozen=True)
class FeedForward(TransitionModel):
    """An ensemble of feed-forward Gaussian networks, each of which predicts a whole step at once.

    Args:
        ensemble: Who predicts: all members together (`average`), or one per imagined `episode` or `step`.
        method: What tables call it.
    """

    ensemble: EnsembleKind = "episode"
    method: str = "ff"

    @property
    def imagination(self) -> EnsembleImagination:
        return EnsembleImagination(
            sampling=self.sampling, clip_margin=self.clip_margin, ensemble=self.ensemble
        )

    def build(
        self,
        *,
        observations: int,
        actions: int,
        termination_rate: float,
        key: PRNGKeyArray,
        **fields: Any,
    ) -> FeedForwardWorld:
        def make(key: PRNGKeyArray) -> Member:
            return Member(
                observations,
                actions,
                units=self.units,
                floor=self.scale_floor,
                termination_rate=termination_rate,
                key=key,
            )

        members = eqx.filter_vmap(make)(jax.random.split(key, self.members))
        return FeedForwardWorld(
            members=members, emission=self.emission, terminates=termination_rate > 0, **fields
        )
