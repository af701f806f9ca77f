"""What the settings of all world models share: how such a model is shaped, scaled and trained."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from vlbm.diagnostics.support import Support
from vlbm.drawing import Drawn, Source
from vlbm.episodes import Episodes
from vlbm.errors import InputError
from vlbm.estimators.base import Estimator, Run, described, plain
from vlbm.estimators.worlds.evaluator import WorldEvaluator
from vlbm.estimators.worlds.validation import open_loop_validation
from vlbm.feeding import WindowFeed
from vlbm.models.base import Imagination, World
from vlbm.progress import Progress
from vlbm.scaling import Scaler
from vlbm.schedule import Schedule
from vlbm.selection import Selection
from vlbm.training import Evaluated, History, minimise
from vlbm.windows import Window, WindowSource
from vlbm.workplaces import Workplace, side_by_side

LOOKED_AT = 100_000  # observations, to see whether they are states


class WorldSettings(Estimator[WorldEvaluator]):
    """Settings of a world model; subclasses are frozen dataclasses with these fields among others."""

    standardise_actions: bool
    steps: int
    learning_rate: float
    warm_up: int
    decay: Literal["cosine", "exponential"]
    decay_rate: float
    clip: float | None
    batch: int
    weight_decay: float
    held_out: float
    validate_every: int
    models: int

    @property
    @abstractmethod
    def imagination(self) -> Imagination:
        """How a fitted world imagines."""

    @abstractmethod
    def assemble(
        self, *, observations: int, actions: int, end_rate: float, random: np.random.Generator, **fields: Any
    ) -> Any:
        """An untrained model; `fields` are what all worlds hold."""

    @abstractmethod
    def draw(self, source: Source[Drawn], *, steps: int, key: PRNGKeyArray) -> Drawn:
        """A batch to learn from; `steps` are those of the longest episode."""

    @abstractmethod
    def loss_on(self, model: Any, window: Window, *, key: PRNGKeyArray) -> Evaluated:
        """The loss on a batch that was drawn with the same key."""

    @abstractmethod
    def window_steps(self, longest: int) -> int:
        """How many steps a window has where the longest episode has so many."""

    @staticmethod
    @abstractmethod
    def ends(world: Any) -> bool:
        """Whether the model ends episodes."""

    @property
    def schedule(self) -> Schedule:
        return Schedule(
            steps=self.steps,
            learning_rate=self.learning_rate,
            warm_up=self.warm_up,
            decay=self.decay,
            decay_rate=self.decay_rate,
            clip=self.clip,
            weight_decay=self.weight_decay,
            validate_every=self.validate_every,
        )

    def learn(self, episodes: Episodes, run: Run) -> WorldEvaluator:
        """Train as many worlds as asked for, each from its own seed and with its own held-out episodes."""
        check_enough(episodes)
        log = Selection.of(episodes)
        settings: Any = self  # a dataclass, as every subclass is
        identity = {"settings": plain(asdict(settings)), "data": episodes.fingerprint(), "seed": run.seed}

        def train(index: int, place: Workplace) -> tuple[Any, History]:
            training, held_out = log.split(self.held_out, seed=run.seed + index)
            title = "training" if self.models == 1 else f"training {index + 1}/{self.models}"
            return self.train_world(
                training,
                held_out,
                keys=_keys(np.int64(run.seed), np.int64(index)),
                checkpoint=run.directory and run.directory / f"checkpoint_{index}.safetensors",
                resume=run.resume,
                identity={**identity, "model": index},
                place=place,
                progress=progress.titled(title),
            )

        with run.progress.together() as progress:
            trained = side_by_side([partial(train, index) for index in range(self.models)], batch=self.batch)
        # An interruption stops all: a model that was never validated counts only if there is no other.
        kept = [pair for pair in trained if pair[1].entries] or trained[:1]
        interrupted = any(history.interrupted for _, history in trained)
        worlds = tuple(world for world, _ in kept)
        histories = tuple(replace(history, interrupted=interrupted) for _, history in kept)
        notes = [*episodes.notes, *_doubts(episodes)]
        if interrupted:
            reached = ", ".join(str(history.best_step) for history in histories)
            notes.append(
                f"training was interrupted; the best so far is used ({len(kept)} of {self.models} models, "
                f"step {reached} of {self.steps})"
            )
        return WorldEvaluator(
            settings=self,
            worlds=worlds,
            initial=episodes.initial_observations(),
            horizon=int(episodes.length.max()),
            seed=run.seed,
            data=described(episodes),
            histories=histories,
            support=None if episodes.mapped else Support.of(episodes, seed=run.seed),
            notes=tuple(notes),
        )

    def train_world(
        self,
        training: Selection,
        held_out: Selection,
        *,
        keys: tuple[PRNGKeyArray, PRNGKeyArray],
        checkpoint: Path | None,
        resume: bool,
        identity: dict[str, Any],
        place: Workplace,
        progress: Progress,
    ) -> tuple[Any, History]:
        """One world, the best of its course by open-loop error on the episodes held out.

        The first key is for its weights, the second for the steps.
        """
        world_key, step_key = keys
        longest = int(training.length.max())
        data: WindowSource | WindowFeed
        # Mapped data may be larger than memory: they stay on disk, and windows come to the device.
        if training.mapped:
            data = WindowFeed(
                training,
                lambda layout, key: self.draw(layout, steps=longest, key=key),
                steps=self.window_steps(longest),
            )
        else:
            data = WindowSource.of(training.gathered())
        return minimise(
            Lesson(self, longest),
            self.make_world(training, key=world_key),
            data,
            schedule=self.schedule,
            validate=open_loop_validation(held_out, self.imagination),
            key=step_key,
            checkpoint=checkpoint,
            resume=resume,
            identity=identity,
            place=place,
            progress=progress,
        )

    def make_world(self, episodes: Episodes | Selection, *, key: PRNGKeyArray) -> Any:
        """An untrained model, scaled to the data."""
        log = Selection.of(episodes)
        scales_actions = self.standardise_actions and not log.discrete
        return self.assemble(
            observations=log.observation_size,
            actions=log.action_size,
            # Where no logged episode was ended by the system, the model ends none either.
            end_rate=min(float(log.terminated.sum() / log.steps), 0.5),
            random=np.random.default_rng(np.asarray(jax.random.key_data(key))),
            action=Scaler.fit_blocks(log.actions()) if scales_actions else Scaler.identity(log.action_size),
            choices=log.choices,
            imagination=self.imagination,
            **self.scaled_to(log),
        )

    def scaled_to(self, log: Selection) -> dict[str, Scaler]:
        """The scalers of what the model predicts."""
        return {
            "observation": Scaler.fit_blocks(log.observations()),
            "reward": Scaler.fit_blocks(log.rewards()),
        }

    def empty_world(self, shape: Mapping[str, Any]) -> Any:
        """A model of the right shape to load weights into; `shape` is what `world_shape` gave."""
        return self.assemble(
            observations=shape["observations"],
            actions=shape["actions"],
            end_rate=0.5 if shape["ends"] else 0.0,
            random=np.random.default_rng(0),
            action=Scaler.identity(shape["actions"]),
            choices=shape["choices"],
            imagination=self.imagination,
            **self.unscaled(shape["observations"]),
        )

    def unscaled(self, observations: int) -> dict[str, Scaler]:
        """Scalers of the same shapes that change nothing."""
        return {"observation": Scaler.identity(observations), "reward": Scaler.identity(1)}

    @classmethod
    def world_shape(cls, world: Any) -> dict[str, Any]:
        return {
            "observations": world.observation.mean.shape[0],
            "actions": world.action.mean.shape[0],
            "choices": world.choices,
            "ends": cls.ends(world),
        }


@dataclass(frozen=True)
class Lesson:
    """What every step learns from; equal ones share a compiled program."""

    settings: WorldSettings
    longest: int  # steps of the longest episode

    def draw(self, source: WindowSource, key: PRNGKeyArray) -> Window:
        return self.settings.draw(source, steps=self.longest, key=key)

    def __call__(self, model: World, window: Window, key: PRNGKeyArray) -> Evaluated:
        return self.settings.loss_on(model, window, key=key)


@jax.jit
def _keys(seed: np.int64, index: np.int64) -> tuple[PRNGKeyArray, PRNGKeyArray]:
    """The luck of one of several models; one program, where every operation would be one by itself."""
    first, second = jax.random.split(jax.random.fold_in(jax.random.key(seed), index))
    return first, second


def check_enough(episodes: Episodes) -> None:
    """Refuse data that no model of the dynamics can be learnt from and validated on."""
    if episodes.count < 2:
        raise InputError("episodes: there is only 1, and validation needs one to hold out; give at least 2")
    if episodes.length.max() < 2:
        raise InputError(
            "episodes: every one has a single step, so there are no dynamics to learn; check the episode "
            "ids or ends (a world model needs steps that follow each other)"
        )


def check_training(settings: Any, counts: tuple[str, ...]) -> None:
    """Refuse settings that no world can be trained with; `counts` must be at least 1."""
    for name in (*counts, "batch", "steps", "validate_every", "models"):
        if getattr(settings, name) < 1:
            raise InputError(f"setting {name}={getattr(settings, name)}: must be at least 1")
    if not 0 < settings.held_out < 1:
        raise InputError(f"setting held_out={settings.held_out}: must lie between 0 and 1")
    if not settings.learning_rate > 0 or not np.isfinite(settings.learning_rate):
        raise InputError(f"setting learning_rate={settings.learning_rate}: must be positive")


def _doubts(episodes: Episodes) -> list[str]:
    """What speaks against a world of densities before any is trained."""
    seen = episodes.observation[:LOOKED_AT]
    size = seen.shape[1]
    if size < 2 or not (np.isin(seen, (0.0, 1.0)).all() and (seen.sum(axis=1) == 1).all()):
        return []
    return [
        f"observations are one of {size} states, and this method foresees densities of vectors, not states: "
        "its estimates are likely wrong; ask fqe, dr, dice, vpm or wpdis"
    ]
