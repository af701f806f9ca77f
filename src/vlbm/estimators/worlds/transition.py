"""What the settings of one-step world models share, and how such a model is fitted to logged episodes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PRNGKeyArray, Scalar

from vlbm.episodes import Episodes
from vlbm.errors import InputError
from vlbm.estimators.worlds.evaluator import WorldEvaluator, fit_worlds
from vlbm.estimators.worlds.validation import open_loop_validation
from vlbm.models.base import Imagination
from vlbm.models.transition import Sizes, TransitionModel
from vlbm.progress import Progress, silent
from vlbm.scaling import Scaler
from vlbm.training import Evaluated, History, Schedule, minimise
from vlbm.windows import Window, WindowSource, action_vectors


@dataclass(frozen=True)
class TransitionSettings(ABC):
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

    def fit(
        self,
        episodes: Episodes,
        *,
        seed: int = 0,
        directory: str | Path | None = None,
        resume: bool = False,
        progress: Progress = silent,
    ) -> WorldEvaluator:
        """Train on logged episodes; with a directory, checkpoints go there and can be resumed from."""
        return fit_worlds(
            self,
            episodes,
            seed=seed,
            directory=None if directory is None else Path(directory),
            resume=resume,
            progress=progress,
        )

    @property
    def imagination(self) -> Imagination:
        return Imagination(sampling=self.sampling, clip_margin=self.clip_margin)

    @property
    def schedule(self) -> Schedule:
        return Schedule(
            steps=self.steps,
            learning_rate=self.learning_rate,
            warm_up=self.warm_up,
            decay_rate=self.decay_rate,
            clip=self.clip,
            weight_decay=self.weight_decay,
            validate_every=self.validate_every,
        )

    @abstractmethod
    def assemble(self, sizes: Sizes, *, random: np.random.Generator, **fields: Any) -> Any:
        """An untrained model; `fields` are what all such models hold."""

    @abstractmethod
    def objective(self, model: Any, window: Window) -> dict[str, Scalar]:
        """The terms whose sum is to be maximised."""

    def make_world(self, episodes: Episodes, *, key: PRNGKeyArray) -> Any:
        """An untrained model, scaled to the data."""
        observation = Scaler.fit(episodes.observation)
        scales_actions = self.standardise_actions and not episodes.discrete
        return self.assemble(
            Sizes(
                observations=episodes.observation_size,
                actions=episodes.action_size,
                # Where no logged episode was ended by the system, the model ends none either.
                end_rate=min(float(episodes.terminated.sum() / episodes.steps), 0.5),
            ),
            random=_random(key),
            observation=observation,
            reward=Scaler.fit(episodes.reward[:, None]),
            action=Scaler.fit(action_vectors(episodes))
            if scales_actions
            else Scaler.identity(episodes.action_size),
            change=Scaler.fit(_changes(episodes, observation)),
            choices=episodes.choices,
            imagination=self.imagination,
        )

    def empty_world(self, shape: Mapping[str, Any]) -> Any:
        """A model of the right shape to load weights into; `shape` is what `world_shape` gave."""
        observations, actions = shape["observations"], shape["actions"]
        return self.assemble(
            Sizes(observations, actions, end_rate=0.5 if shape["ends"] else 0.0),
            random=np.random.default_rng(0),
            observation=Scaler.identity(observations),
            reward=Scaler.identity(1),
            action=Scaler.identity(actions),
            change=Scaler.identity(observations),
            choices=shape["choices"],
            imagination=self.imagination,
        )

    @classmethod
    def world_shape(cls, world: TransitionModel) -> dict[str, Any]:
        return {
            "observations": world.observation.mean.shape[0],
            "actions": world.action.mean.shape[0],
            "choices": world.choices,
            "ends": cls.ends(world),
        }

    @staticmethod
    @abstractmethod
    def ends(world: Any) -> bool:
        """Whether the model ends episodes."""

    def train_world(
        self,
        training: Episodes,
        held_out: Episodes,
        *,
        key: PRNGKeyArray,
        checkpoint: Path | None,
        resume: bool,
        identity: dict[str, Any],
        progress: Progress,
    ) -> tuple[Any, History]:
        world_key, step_key = jax.random.split(key)

        def evaluate(model: TransitionModel, source: WindowSource, key: PRNGKeyArray) -> Evaluated:
            window = source.draw(steps=1, batch=self.batch, at_start=0.0, key=key)
            terms = self.objective(model, window)
            loss = -jnp.stack(list(terms.values())).sum()
            return Evaluated(loss, {"loss": loss, **terms}, model)

        return minimise(
            evaluate,
            self.make_world(training, key=world_key),
            WindowSource.of(training),
            schedule=self.schedule,
            validate=open_loop_validation(held_out, self.imagination),
            key=step_key,
            checkpoint=checkpoint,
            resume=resume,
            identity=identity,
            progress=progress,
        )


def _changes(episodes: Episodes, observation: Scaler) -> Float[np.ndarray, "steps obs"]:
    """How standardised observations change from each step to the next."""
    before = episodes.observation_before
    return (episodes.observation[before + 1] - episodes.observation[before]) / np.asarray(observation.scale)


def _random(key: PRNGKeyArray) -> np.random.Generator:
    return np.random.default_rng(np.asarray(jax.random.key_data(key)))


def _check_settings(settings: TransitionSettings) -> None:
    for name in ("members", "batch", "steps", "validate_every", "models"):
        if getattr(settings, name) < 1:
            raise InputError(f"setting {name}={getattr(settings, name)}: must be at least 1")
    if not settings.units or min(settings.units) < 1:
        raise InputError(
            f"setting units={settings.units}: give at least one hidden layer, none of them empty"
        )
    if not 0 < settings.held_out < 1:
        raise InputError(f"setting held_out={settings.held_out}: must lie between 0 and 1")
    if not settings.learning_rate > 0 or not np.isfinite(settings.learning_rate):
        raise InputError(f"setting learning_rate={settings.learning_rate}: must be positive")
    if not settings.scale_floor > 0:
        raise InputError(f"setting scale_floor={settings.scale_floor}: must be positive")
