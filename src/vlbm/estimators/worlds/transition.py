"""What the settings of one-step world models share, and how such a model is fitted to logged episodes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PRNGKeyArray, Scalar

from vlbm.devices import share
from vlbm.drawing import Drawn, Source
from vlbm.errors import InputError
from vlbm.estimators.worlds.settings import WorldSettings, check_training
from vlbm.models.base import Imagination
from vlbm.models.transition import TransitionModel
from vlbm.scaling import Scaler
from vlbm.selection import Selection
from vlbm.training import Evaluated
from vlbm.windows import Window


@dataclass(frozen=True)
class TransitionSettings(WorldSettings):
    """Settings of a model of p(s', r, d | s, a), trained on single steps."""

    # The networks
    members: int = 5
    units: tuple[int, ...] = (256, 256)
    scale_floor: float = 0.01
    standardise_actions: bool = True
    # The training
    batch: int = 256
    steps: int = 4000
    learning_rate: float = 2e-3
    warm_up: int = 100
    decay: Literal["cosine", "exponential"] = "cosine"
    decay_rate: float = 0.05  # what remains of the learning rate at the end
    clip: float | None = 20.0
    weight_decay: float = 0.0
    held_out: float = 0.1  # share of episodes kept for validation
    validate_every: int = 500
    models: int = 1  # whole ensembles, trained from different seeds; their estimates are averaged
    # The imagination
    sampling: Literal["all", "none"] = "none"  # draw observations and rewards, or take their means
    clip_margin: float | None = 0.1
    # What tables call it
    method: str = "transition"

    # Such a model cannot imagine how an episode begins.
    start: ClassVar[str] = "logged"

    def __post_init__(self) -> None:
        _check_settings(self)

    @property
    def imagination(self) -> Imagination:
        return Imagination(sampling=self.sampling, clip_margin=self.clip_margin)

    @abstractmethod
    def objective(self, model: Any, window: Window) -> dict[str, Scalar]:
        """The terms whose sum is to be maximised."""

    def window_steps(self, longest: int) -> int:
        return 1

    def draw(self, source: Source[Drawn], *, steps: int, key: PRNGKeyArray) -> Drawn:
        return source.draw(steps=1, batch=self.batch, at_start=0.0, key=key)

    def loss_on(self, model: TransitionModel, window: Window, *, key: PRNGKeyArray) -> Evaluated:
        terms = self.objective(model, share(window, axis=1))
        loss = -jnp.stack(list(terms.values())).sum()
        return Evaluated(loss, {"loss": loss, **terms}, model)

    def scaled_to(self, log: Selection) -> dict[str, Scaler]:
        scalers = super().scaled_to(log)
        return {**scalers, "change": Scaler.fit_blocks(_changes(log, scalers["observation"]))}

    def unscaled(self, observations: int) -> dict[str, Scaler]:
        return {**super().unscaled(observations), "change": Scaler.identity(observations)}


def _changes(log: Selection, observation: Scaler) -> Iterator[Float[np.ndarray, "rows obs"]]:
    """How standardised observations change from each step to the next, a block at a time."""
    seen, scale = log.collection.observation, np.asarray(observation.scale)
    for steps in log.blocks():
        yield (seen[steps.before + 1] - seen[steps.before]) / scale


def _check_settings(settings: TransitionSettings) -> None:
    check_training(settings, ("members",))
    if not settings.units or min(settings.units) < 1:
        raise InputError(
            f"setting units={settings.units}: give at least one hidden layer, none of them empty"
        )
    if not settings.scale_floor > 0:
        raise InputError(f"setting scale_floor={settings.scale_floor}: must be positive")
