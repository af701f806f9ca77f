"""FeedForward: the settings of the feed-forward ensemble."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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

    def make_member(self, observations: int, actions: int, **options: Any) -> Member:
        return Member(observations, actions, **options)

    def make_ensemble(self, members: Member, **fields: Any) -> FeedForwardWorld:
        return FeedForwardWorld(members=members, **fields)
