"""AutoRegressive: the settings of the auto-regressive ensemble."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Scalar

from vlbm.devices import on_device
from vlbm.errors import InputError
from vlbm.estimators.worlds.transition import TransitionSettings
from vlbm.models.autoregressive import AutoRegressiveModel, MaskedNetwork
from vlbm.models.transition import Sizes
from vlbm.networks import stacked
from vlbm.windows import Window


@dataclass(frozen=True)
class AutoRegressive(TransitionSettings):
    """An ensemble of auto-regressive models, mixed with learnt weights like VLBM's branches."""

    members: int = 10
    units: tuple[int, ...] = (128, 128)
    masked_units: int = 8  # for every column of the observation
    member_weight: float = 1.0  # of the members' own likelihood beside that of their consensus
    method: str = "ar"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.masked_units < 1:
            raise InputError(f"setting masked_units={self.masked_units}: must be at least 1")
        if self.member_weight < 0:
            raise InputError(f"setting member_weight={self.member_weight}: must not be negative")

    def assemble(
        self, *, observations: int, actions: int, end_rate: float, random: np.random.Generator, **fields: Any
    ) -> AutoRegressiveModel:
        sizes = Sizes(observations, actions, end_rate)
        members = [
            MaskedNetwork(
                sizes,
                units=self.units,
                masked_units=self.masked_units,
                scale_floor=self.scale_floor,
                random=random,
            )
            for _ in range(self.members)
        ]
        weight_root = on_device(np.ones(self.members))
        return AutoRegressiveModel(network=stacked(members), weight_root=weight_root, **fields)

    def objective(self, model: AutoRegressiveModel, window: Window) -> dict[str, Scalar]:
        members, mixture = model.log_likelihood(window)
        return {
            "mixture": mixture.data,
            "members": self.member_weight * members.data.mean(),
            "ending": mixture.ending + self.member_weight * members.ending.mean(),
        }

    @staticmethod
    def ends(world: AutoRegressiveModel) -> bool:
        return world.network.ends
