"""AutoRegressive: the settings of the auto-regressive ensemble."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

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

    def build(
        self,
        *,
        observations: int,
        actions: int,
        termination_rate: float,
        key: PRNGKeyArray,
        **fields: Any,
    ) -> AutoRegressiveWorld:
        def make(key: PRNGKeyArray) -> Member:
            return Member(
                observations,
                actions,
                units=self.units,
                masked_units=self.masked_units,
                floor=self.scale_floor,
                termination_rate=termination_rate,
                key=key,
            )

        return AutoRegressiveWorld(
            members=eqx.filter_vmap(make)(jax.random.split(key, self.members)),
            weight_root=jnp.ones(self.members),
            member_weight=self.member_weight,
            emission=self.emission,
            terminates=termination_rate > 0,
            **fields,
        )
