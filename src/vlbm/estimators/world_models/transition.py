"""What the settings of one-step world models share, and how such a model is fitted to logged episodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from vlbm.data.sampler import Plan, Window
from vlbm.data.scaler import Scaler
from vlbm.data.view import EpisodeView
from vlbm.errors import InputError
from vlbm.estimators.world_models.settings import WorldSettings, check_training, fit_changes
from vlbm.nn.training import LossOutput
from vlbm.worlds.base import Imagination
from vlbm.worlds.transition import EmissionKind


@dataclass(frozen=True)
class TransitionSettings(WorldSettings):
    """Settings of a model of p(s', r, d | s, a), trained on single steps."""

    # The networks
    members: int = 4
    units: tuple[int, ...] = (200, 200, 200)
    scale_floor: float = 0.01
    standardise_actions: bool = True
    emission: EmissionKind = "difference"  # predict how observations change, or what they become
    # The training
    batch: int = 256
    steps: int = 20_000
    learning_rate: float = 1e-3
    warm_up: int = 100
    decay: Literal["cosine", "exponential"] = "cosine"
    decay_rate: float = 0.05  # what remains of the learning rate at the end
    clip: float | None = 20.0
    weight_decay: float = 0.0
    held_out: float = 0.1  # share of episodes kept for validation
    validate_every: int = 1000
    models: int = 1  # whole ensembles, trained from different seeds; their estimates are averaged
    keep: int | None = None  # those that validate best; none keeps all
    # The imagination
    sampling: Literal["all", "none"] = "none"  # draw observations and rewards, or take their means
    clip_margin: float | None = 0.1
    # What tables call it
    method: str = "transition"

    # Such a model cannot imagine how an episode begins.
    start: ClassVar[str] = "encoder"

    def __post_init__(self) -> None:
        _check_settings(self)

    @property
    def imagination(self) -> Imagination:
        return Imagination(sampling=self.sampling, clip_margin=self.clip_margin)

    def plan(self, longest: int) -> Plan:
        return Plan(self.batch, steps=1)

    def evaluate_loss(self, model: Any, batch: Window, key: PRNGKeyArray) -> LossOutput:
        terms = jax.tree.map(jnp.mean, jax.vmap(model.objective)(batch))
        loss = -sum(terms.values())
        return LossOutput(loss, {"loss": loss, **terms}, model)

    def scaled_to(self, log: EpisodeView) -> dict[str, Scaler]:
        scalers = super().scaled_to(log)
        return {**scalers, "change": fit_changes(log, scalers["observation"])}

    def unscaled(self, observations: int) -> dict[str, Scaler]:
        return {**super().unscaled(observations), "change": Scaler.identity(observations)}


def _check_settings(settings: TransitionSettings) -> None:
    check_training(settings, ("members",))
    if not settings.units or min(settings.units) < 1:
        raise InputError(
            f"setting units={settings.units}: give at least one hidden layer, none of them empty"
        )
    if not settings.scale_floor > 0:
        raise InputError(f"setting scale_floor={settings.scale_floor}: must be positive")
