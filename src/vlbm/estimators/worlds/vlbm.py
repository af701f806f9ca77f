"""VLBM: the settings of the branching model, and how it is fitted to logged episodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from vlbm.episodes import Episodes
from vlbm.errors import InputError
from vlbm.estimators.worlds.evaluator import WorldEvaluator, fit_worlds
from vlbm.estimators.worlds.validation import open_loop_validation
from vlbm.models.base import Imagination, SamplingKind
from vlbm.models.branching import BranchingModel
from vlbm.models.latent import Architecture, Decoder, Encoder
from vlbm.models.objective import AlignmentKind, MixtureKind, Weighting, objective
from vlbm.networks import NormalisationKind, stacked
from vlbm.progress import Progress, silent
from vlbm.scaling import Scaler
from vlbm.training import Evaluated, History, Schedule, minimise
from vlbm.windows import WindowSource, action_vectors


@dataclass(frozen=True)
class VLBM:
    """The variational latent branching model; the defaults are the `default` preset."""

    # The networks
    branches: int = 3
    latents: int = 32
    units: int = 128
    head_units: tuple[int, ...] = (128, 64)
    normalisation: NormalisationKind = "none"
    scale_floor: float = 0.01
    shared_encoder: bool = True  # False gives every branch its own: an ensemble of whole models
    standardise_actions: bool = True
    # The objective
    alignment: AlignmentKind = "pairwise"
    alignment_weight: float = 0.1  # C1
    bound_weight: float = 1 / 3  # C2; one over the branches averages their bounds
    divergence_weight: float = 0.1
    initial_divergence_weight: float = 0.01
    mixture: MixtureKind = "encoder"
    # The training
    window: int | None = 5  # steps; None trains on whole episodes
    at_start: float = 0.1  # share of windows that begin with an episode
    batch: int = 160
    steps: int = 2000
    learning_rate: float = 8e-3
    warm_up: int = 100
    decay: Literal["cosine", "exponential"] = "cosine"
    decay_rate: float = 0.05
    clip: float | None = 20.0
    weight_decay: float = 0.0
    held_out: float = 0.1  # share of episodes kept for validation
    validate_every: int = 250
    models: int = 3  # trained from different seeds; their estimates are averaged
    # The imagination
    start: Literal["logged", "prior"] = "logged"
    sampling: SamplingKind = "latents"
    reencode_every: int | None = 10
    clip_margin: float | None = 0.1
    # What tables call it; the ablations have names of their own.
    method: str = "vlbm"

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
        return Imagination(self.sampling, self.reencode_every, self.clip_margin)

    @property
    def weighting(self) -> Weighting:
        return Weighting(
            alignment=self.alignment,
            alignment_weight=self.alignment_weight,
            bound_weight=self.bound_weight,
            divergence_weight=self.divergence_weight,
            initial_divergence_weight=self.initial_divergence_weight,
            mixture=self.mixture,
        )

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

    def architecture(self, *, observations: int, actions: int, end_rate: float) -> Architecture:
        return Architecture(
            observations=observations,
            actions=actions,
            latents=self.latents,
            units=self.units,
            head_units=self.head_units,
            normalisation=self.normalisation,
            scale_floor=self.scale_floor,
            end_rate=end_rate,
        )

    def make_world(self, episodes: Episodes, *, key: PRNGKeyArray) -> BranchingModel:
        """An untrained model, scaled to the data."""
        # Where no logged episode was ended by the system, the model ends none either.
        end_rate = float(episodes.terminated.sum() / episodes.steps)
        action = Scaler.fit(action_vectors(episodes)) if self._scale_actions(episodes) else None
        return self._assemble(
            self.architecture(
                observations=episodes.observation_size,
                actions=episodes.action_size,
                end_rate=min(end_rate, 0.5),
            ),
            observation=Scaler.fit(episodes.observation),
            reward=Scaler.fit(episodes.reward[:, None]),
            action=action or Scaler.identity(episodes.action_size),
            choices=episodes.choices,
            key=key,
        )

    def empty_world(self, shape: Mapping[str, Any]) -> BranchingModel:
        """A model of the right shape to load weights into; `shape` is what `world_shape` gave."""
        sizes = self.architecture(
            observations=shape["observations"],
            actions=shape["actions"],
            end_rate=0.5 if shape["ends"] else 0.0,
        )
        return self._assemble(
            sizes,
            observation=Scaler.identity(shape["observations"]),
            reward=Scaler.identity(1),
            action=Scaler.identity(shape["actions"]),
            choices=shape["choices"],
            key=jax.random.key(0),
        )

    @staticmethod
    def world_shape(world: BranchingModel) -> dict[str, Any]:
        return {
            "observations": world.observation.mean.shape[0],
            "actions": world.action.mean.shape[0],
            "choices": world.choices,
            "ends": world.decoder.ending is not None,
        }

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
    ) -> tuple[BranchingModel, History]:
        world_key, step_key = jax.random.split(key)
        world = self.make_world(training, key=world_key)
        steps = self.window or int(training.length.max())
        weighting = self.weighting

        def evaluate(model: BranchingModel, source: WindowSource, key: PRNGKeyArray) -> Evaluated:
            window_key, noise_key = jax.random.split(key)
            if self.window is None:
                window = source.draw_episodes(steps=steps, batch=self.batch, key=window_key)
            else:
                window = source.draw(steps=steps, batch=self.batch, at_start=self.at_start, key=window_key)
            terms, moved = objective(model, window, weighting, key=noise_key)
            loss = -terms.total(weighting)
            return Evaluated(loss, {"loss": loss, **terms._asdict()}, moved)

        return minimise(
            evaluate,
            world,
            WindowSource.of(training),
            schedule=self.schedule,
            validate=open_loop_validation(held_out, self.imagination),
            key=step_key,
            checkpoint=checkpoint,
            resume=resume,
            identity=identity,
            progress=progress,
        )

    def _scale_actions(self, episodes: Episodes) -> bool:
        return self.standardise_actions and not episodes.discrete

    def _assemble(self, sizes: Architecture, *, key: PRNGKeyArray, **fields: Any) -> BranchingModel:
        random = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        encoders = 1 if self.shared_encoder else self.branches
        encoder = stacked([Encoder(sizes, random=random) for _ in range(encoders)])
        decoder = stacked([Decoder(sizes, random=random) for _ in range(self.branches)])
        return BranchingModel(
            encoder=encoder,
            decoder=decoder,
            weight_root=jnp.ones(self.branches),
            shared_encoder=self.shared_encoder,
            window=self.window,
            imagination=self.imagination,
            **fields,
        )


def _check_settings(settings: VLBM) -> None:
    for name in ("branches", "latents", "units", "batch", "steps", "validate_every", "models"):
        if getattr(settings, name) < 1:
            raise InputError(f"setting {name}={getattr(settings, name)}: must be at least 1")
    for name in ("window", "reencode_every"):
        value = getattr(settings, name)
        if value is not None and value < 1:
            raise InputError(f"setting {name}={value}: must be at least 1, or none")
    if settings.units < 2 and settings.alignment == "pairwise":
        raise InputError("setting units=1: pairwise alignment needs at least 2 units")
    if not settings.head_units:
        raise InputError("setting head_units: at least one hidden layer is needed")
    if not 0 < settings.held_out < 1:
        raise InputError(f"setting held_out={settings.held_out}: must lie between 0 and 1")
    if not settings.learning_rate > 0 or not np.isfinite(settings.learning_rate):
        raise InputError(f"setting learning_rate={settings.learning_rate}: must be positive")
