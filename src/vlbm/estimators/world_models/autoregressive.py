"""AutoRegressive: the settings of the auto-regressive ensemble."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from vlbm.errors import InputError
from vlbm.estimators.world_models.transition import TransitionModel
from vlbm.worlds.autoregressive import AutoRegressiveWorld, Member


@dataclass(frozen=True)
class AutoRegressive(TransitionModel):
    """An ensemble of auto-regressive models, mixed with learnt weights like VLBM's branches.

    Args:
        members: Networks of an ensemble.
        units: Hidden layers of a network.
        masked_units: Units for every column of the observation.
        member_weight: Weight of the members' own likelihood beside that of their consensus.
        method: What tables call it.
    """

    members: int = 5
    units: tuple[int, ...] = (200, 200)
    masked_units: int = 8
    member_weight: float = 1.0
    method: str = "ar"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.masked_units < 1:
            raise InputError(f"setting masked_units={self.masked_units}: must be at least 1")
        if self.member_weight < 0:
            raise InputError(f"setting member_weight={self.member_weight}: must not be negative")

    def make_member(self, observations: int, actions: int, **options: Any) -> Member:
        return Member(observations, actions, masked_units=self.masked_units, **options)

    def make_ensemble(self, members: Member, **fields: Any) -> AutoRegressiveWorld:
        return AutoRegressiveWorld(
            members=members,
            weight_root=jnp.ones(self.members),
            member_weight=self.member_weight,
            **fields,
        )
