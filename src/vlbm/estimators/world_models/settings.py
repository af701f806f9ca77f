"""What the settings of all world models share: how such a model is shaped, scaled and trained."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from vlbm.data.episodes import Episodes
from vlbm.data.outcomes import describe_left_out
from vlbm.data.sampler import MappedSampler, Plan, Sampler, Window
from vlbm.data.scaler import Scaler
from vlbm.data.view import EpisodeView
from vlbm.errors import InputError, check_counts
from vlbm.estimators.base import Estimator, flatten_settings
from vlbm.estimators.world_models.evaluator import WorldEvaluator
from vlbm.estimators.world_models.validation import open_loop_validation, warn_if_untrained
from vlbm.nn.optimiser import Schedule
from vlbm.nn.training import History, LossOutput, evaluate_loss, train
from vlbm.parallel import Devices, run_parallel
from vlbm.progress import Progress
from vlbm.results.diagnostics.support import Support
from vlbm.worlds.base import Imagination, World

LOOKED_AT = 100_000  # observations, to see whether they are states


class WorldModel(Estimator[WorldEvaluator]):
    """An estimator by learnt worlds; subclasses are frozen dataclasses with these fields among others."""

    answers_infinite_horizon: ClassVar[bool] = False  # a roll-out has a last step
    imagines: ClassVar[bool] = True
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
    keep: int | None

    @property
    @abstractmethod
    def imagination(self) -> Imagination:
        """How a fitted world imagines."""

    @abstractmethod
    def build(
        self,
        *,
        observations: int,
        actions: int,
        termination_rate: float,
        key: PRNGKeyArray,
        change: Scaler,
        **fields: Any,
    ) -> Any:
        """An untrained model; `fields` are its other scalers, `n_actions` and `imagination`."""

    @abstractmethod
    def plan(self, longest: int) -> Plan:
        """How batches are drawn where the longest episode has so many steps."""

    @abstractmethod
    def loss(self, model: Any, batch: Window, key: PRNGKeyArray) -> LossOutput:
        """The loss on a batch of windows."""

    def learn(
        self,
        episodes: Episodes,
        *,
        seed: int,
        directory: Path | None,
        resume: bool,
        progress: Progress,
        **_: Any,
    ) -> WorldEvaluator:
        """Train as many worlds as asked for, each from its own seed, and keep those that validate best."""
        check_enough(episodes)
        left_out = describe_left_out(episodes, ~episodes.outcome_known)
        training, held_out = EpisodeView.of(episodes).split(self.held_out, seed=seed)
        settings: Any = self  # a dataclass, as every subclass is
        identity = {
            "settings": flatten_settings(asdict(settings)),
            "data": episodes.fingerprint(),
            "seed": seed,
        }

        def train_one(index: int, devices: Devices) -> tuple[Any, History]:
            return self.train_world(
                training,
                held_out,
                key=jax.random.fold_in(jax.random.key(seed), index),
                checkpoint=directory and directory / f"checkpoint_{index}.safetensors",
                resume=resume,
                identity={**identity, "model": index},
                devices=devices,
                progress=together.with_title("training"),
            )

        with progress.shared_display(parts=self.models) as together:
            jobs = [partial(train_one, index) for index in range(self.models)]
            trained = run_parallel(jobs, batch=self.batch)
        interrupted = any(history.interrupted for _, history in trained)
        kept = select(trained, self.keep or self.models)
        worlds = tuple(world for world, _ in kept)
        histories = tuple(replace(history, interrupted=interrupted) for _, history in kept)
        notes = [*left_out, *_warn_of_state_ids(episodes)]
        if interrupted:
            reached = ", ".join(str(history.best_step) for history in histories)
            notes.append(
                f"training was interrupted; the best so far is used ({len(kept)} of {self.models} models, "
                f"step {reached} of {self.steps})"
            )
        notes += self.compare_with_baseline(worlds, histories, held_out)
        return WorldEvaluator(
            settings=self,
            worlds=worlds,
            initial=episodes.initial_observations(),
            horizon=episodes.longest,
            seed=seed,
            histories=histories,
            support=None if episodes.mapped else Support.of(episodes, seed=seed),
            notes=tuple(notes),
        )

    def compare_with_baseline(
        self, worlds: Sequence[World], histories: Sequence[History], held_out: EpisodeView
    ) -> tuple[str, ...]:
        """Warns of worlds that validated no better than a baseline."""
        scores = [history.best_score for history in histories if history.best_score is not None]
        if not scores:  # never validated, as interrupted training
            return ()
        whole = self.plan(int(held_out.length.max())).whole
        return warn_if_untrained(float(np.mean(scores)), worlds[0], held_out, from_starts=whole)

    def train_world(
        self,
        training: EpisodeView,
        held_out: EpisodeView,
        *,
        key: PRNGKeyArray,
        checkpoint: Path | None,
        resume: bool,
        identity: dict[str, Any],
        devices: Devices,
        progress: Progress,
    ) -> tuple[Any, History]:
        """One world, the best of its course by open-loop error on the episodes held out."""
        world_key, step_key = jax.random.split(key)
        plan = self.plan(int(training.length.max()))
        # Mapped data may be larger than cache: they stay on disk, and windows come to the device.
        data = MappedSampler(training, plan) if training.mapped else Sampler.of(training)
        return train(
            evaluate_loss,
            self.make_world(training, key=world_key),
            data,
            constants=(self,),
            schedule=Schedule.of(self),
            validate=open_loop_validation(held_out, self.imagination, from_starts=plan.whole),
            key=step_key,
            batch=plan,
            checkpoint=checkpoint,
            resume=resume,
            identity=identity,
            devices=devices,
            progress=progress,
        )

    def make_world(self, episodes: Episodes | EpisodeView, *, key: PRNGKeyArray) -> Any:
        """An untrained model, scaled to the data."""
        log = EpisodeView.of(episodes)
        build = eqx.filter_jit(
            lambda key, scalers: self.build(
                observations=log.observation_size,
                actions=log.action_size,
                # Where no logged episode was terminated, the model terminates none either.
                termination_rate=min(float(log.terminated.sum() / log.steps), 0.5),
                key=key,
                n_actions=log.n_actions,
                imagination=self.imagination,
                **scalers,
            )
        )
        return build(key, fit_scalers(log, actions=self.standardise_actions and not log.discrete))

    def empty_world(self, shape: Mapping[str, Any]) -> Any:
        """A model of the right shape to load weights into; `shape` is that of another world."""
        observations, actions = shape["observations"], shape["actions"]
        return eqx.filter_jit(self.build)(
            observations=observations,
            actions=actions,
            termination_rate=0.5 if shape["terminates"] else 0.0,
            key=jax.random.key(0),
            n_actions=shape["n_actions"],
            imagination=self.imagination,
            observation=Scaler.identity(observations),
            reward=Scaler.identity(1),
            action=Scaler.identity(actions),
            change=Scaler.identity(observations),
        )


def select(trained: list[tuple[Any, History]], keep: int) -> list[tuple[Any, History]]:
    """The models that validate best, in the order in which they were trained.

    A model that was never validated, because training was interrupted, counts only if there is no other.
    """
    validated = [pair for pair in trained if pair[1].entries] or trained[:1]
    scores = [np.inf if history.best_score is None else history.best_score for _, history in validated]
    best = np.sort(np.argsort(np.nan_to_num(scores, nan=np.inf), kind="stable")[:keep])
    return [validated[index] for index in best]


def fit_scalers(log: EpisodeView, *, actions: bool) -> dict[str, Scaler]:
    """The scalers of observations, of rewards, of actions (or none) and of standardised changes in a step."""
    observation = Scaler.fit_blocks(log.observations())
    s, scale = log.collection.observation, np.asarray(observation.scale)
    changes = ((s[steps.before + 1] - s[steps.before]) / scale for steps in log.blocks())
    return {
        "observation": observation,
        "reward": Scaler.fit_blocks(log.rewards()),
        "action": Scaler.fit_blocks(log.actions()) if actions else Scaler.identity(log.action_size),
        "change": Scaler.fit_blocks(changes),
    }


def check_enough(episodes: Episodes) -> None:
    """Refuse data that no model of the dynamics can be learnt from and validated on."""
    if episodes.count < 2:
        raise InputError("episodes: there is only 1, and validation needs one to hold out; give at least 2")
    if episodes.length.max() < 2:
        raise InputError(
            "episodes: every one has a single step, so there are no dynamics to learn; check the episode "
            "ids or ends (a world model needs steps that follow each other; wpdis does not)"
        )


def check_training(settings: Any, counts: tuple[str, ...]) -> None:
    """Refuse settings that no world can be trained with; `counts` must be at least 1."""
    check_counts(settings, *counts, "batch", "steps", "validate_every", "models")
    if not 0 < settings.held_out < 1:
        raise InputError(f"setting held_out={settings.held_out}: must lie between 0 and 1")
    if settings.keep is not None and settings.keep < 1:
        raise InputError(f"setting keep={settings.keep}: must be at least 1, or none to keep all models")
    if not settings.learning_rate > 0 or not np.isfinite(settings.learning_rate):
        raise InputError(f"setting learning_rate={settings.learning_rate}: must be positive")


def _warn_of_state_ids(episodes: Episodes) -> list[str]:
    """Warns of observations that densities do not suit, before any world is trained."""
    observation = episodes.observation[:LOOKED_AT]
    size = observation.shape[1]
    if size < 2 or not (np.isin(observation, (0.0, 1.0)).all() and (observation.sum(axis=1) == 1).all()):
        return []
    return [
        f"observations are one of {size} states, and this method models densities of vectors, not states: "
        "its estimates are likely wrong; ask fqe, dr, dice, vpm or wpdis"
    ]
