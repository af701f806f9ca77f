"""What the settings of one-step world models share, and how such a model is fitted to logged episodes."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from vlbm.data.sampler import Plan, Window
from vlbm.errors import InputError
from vlbm.estimators.world_models.settings import WorldModel, check_training
from vlbm.nn.training import LossOutput
from vlbm.worlds.base import Imagination
from vlbm.worlds.transition import EmissionKind


@dataclass(frozen=True)
class TransitionModel(WorldModel):
    """An estimator by models of p(s', r, d | s, a), trained on single steps.

    Args:
        members: Networks of an ensemble.
        units: Hidden layers of a network.
        scale_floor: Smallest scale of a predicted number, in deviations of the logged ones.
        standardise_actions: Whether networks see standardised actions.
        emission: Predict how observations change, or what they become.
        batch: Steps in a batch.
        steps: Steps of training.
        learning_rate: Its largest value.
        warm_up: Steps in which the learning rate rises to it.
        decay: How the learning rate falls.
        decay_rate: Of `cosine`: what remains of the learning rate at the end; of `exponential`: its factor
            per step.
        clip: Largest norm of a gradient; None clips nothing.
        weight_decay: L2 on the weights of hidden layers.
        held_out: Share of episodes kept for validation.
        validate_every: Steps between validations.
        models: Whole ensembles, trained from different seeds; their estimates are averaged.
        keep: How many are kept, those that validate best; None keeps all.
        sampling: Draw observations and rewards (`all`), or take their means (`none`).
        clip_margin: How far predictions may leave the logged range, as a share of it; None lets them.
        method: What tables call it.
    """

    # The networks
    members: int = 4
    units: tuple[int, ...] = (200, 200, 200)
    scale_floor: float = 0.01
    standardise_actions: bool = True
    emission: EmissionKind = "difference"
    # The training
    batch: int = 256
    steps: int = 20_000
    learning_rate: float = 1e-3
    warm_up: int = 100
    decay: Literal["cosine", "exponential"] = "cosine"
    decay_rate: float = 0.05
    clip: float | None = 20.0
    weight_decay: float = 0.0
    held_out: float = 0.1
    validate_every: int = 1000
    models: int = 1
    keep: int | None = None
    # The imagination
    sampling: Literal["all", "none"] = "none"
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

    @abstractmethod
    def make_member(self, observations: int, actions: int, **options: Any) -> Any:
        """A network of an ensemble."""

    @abstractmethod
    def make_ensemble(self, members: Any, **fields: Any) -> Any:
        """The world of these networks, which are stacked."""

    def build(
        self, *, observations: int, actions: int, termination_rate: float, key: PRNGKeyArray, **fields: Any
    ) -> Any:
        def make(key: PRNGKeyArray) -> Any:
            return self.make_member(
                observations,
                actions,
                units=self.units,
                floor=self.scale_floor,
                termination_rate=termination_rate,
                key=key,
            )

        members = eqx.filter_vmap(make)(jax.random.split(key, self.members))
        return self.make_ensemble(members, emission=self.emission, terminates=termination_rate > 0, **fields)

    def loss(self, model: Any, batch: Window, key: PRNGKeyArray) -> LossOutput:
        terms = jax.tree.map(jnp.mean, jax.vmap(model.objective)(batch))
        loss = -sum(terms.values())
        return LossOutput(loss, {"loss": loss, **terms}, model)


def _check_settings(settings: TransitionModel) -> None:
    check_training(settings, ("members",))
    if not settings.units or min(settings.units) < 1:
        raise InputError(
            f"setting units={settings.units}: give at least one hidden layer, none of them empty"
        )
    if not settings.scale_floor > 0:
        raise InputError(f"setting scale_floor={settings.scale_floor}: must be positive")
