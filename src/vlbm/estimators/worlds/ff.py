"""FeedForward: the settings of the feed-forward ensemble."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Scalar

from vlbm.estimators.worlds.transition import TransitionSettings
from vlbm.models.feedforward import EnsembleImagination, EnsembleKind, FeedForwardModel, FeedForwardNetwork
from vlbm.models.transition import Sizes
from vlbm.networks import stacked
from vlbm.windows import Window


@dataclass(frozen=True)
class FeedForward(TransitionSettings):
    """An ensemble of feed-forward Gaussian networks, each of which predicts a whole step at once."""

    ensemble: EnsembleKind = "average"  # all members together, or one per imagined episode or step
    method: str = "ff"

    @property
    def imagination(self) -> EnsembleImagination:
        return EnsembleImagination(
            sampling=self.sampling, clip_margin=self.clip_margin, ensemble=self.ensemble
        )

    def assemble(
        self, *, observations: int, actions: int, end_rate: float, random: np.random.Generator, **fields: Any
    ) -> FeedForwardModel:
        sizes = Sizes(observations, actions, end_rate)
        members = [
            FeedForwardNetwork(sizes, units=self.units, scale_floor=self.scale_floor, random=random)
            for _ in range(self.members)
        ]
        return FeedForwardModel(network=stacked(members), **fields)

    def objective(self, model: FeedForwardModel, window: Window) -> dict[str, Scalar]:
        members = model.log_likelihood(window)
        return {"data": members.data.mean(), "ending": members.ending.mean()}

    @staticmethod
    def ends(world: FeedForwardModel) -> bool:
        return world.network.ending_head is not None
