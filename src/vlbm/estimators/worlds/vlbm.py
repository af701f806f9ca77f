"""VLBM: the settings of the branching model, and how it is fitted to logged episodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from vlbm.devices import on_device
from vlbm.drawing import Drawn, Source
from vlbm.errors import InputError
from vlbm.estimators.worlds.settings import WorldSettings, check_training
from vlbm.models.base import Imagination, SamplingKind
from vlbm.models.branching import BranchingModel
from vlbm.models.latent import Architecture, Decoder, Encoder
from vlbm.models.objective import objective
from vlbm.models.terms import AlignmentKind, MixtureKind, Weighting
from vlbm.networks import NormalisationKind, stacked
from vlbm.training import Evaluated
from vlbm.windows import Window


@dataclass(frozen=True)
class VLBM(WorldSettings):
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

    def window_steps(self, longest: int) -> int:
        return longest if self.window is None else self.window

    def draw(self, source: Source[Drawn], *, steps: int, key: PRNGKeyArray) -> Drawn:
        window_key, _ = jax.random.split(key)
        if self.window is None:
            return source.draw_episodes(steps=steps, batch=self.batch, key=window_key)
        return source.draw(steps=self.window, batch=self.batch, at_start=self.at_start, key=window_key)

    def loss_on(self, model: BranchingModel, window: Window, *, key: PRNGKeyArray) -> Evaluated:
        _, noise_key = jax.random.split(key)
        judged = objective(model, window, self.weighting, key=noise_key)
        return Evaluated(-judged.total, {"loss": -judged.total, **judged.terms._asdict()}, judged.model)

    def assemble(
        self, *, observations: int, actions: int, end_rate: float, random: np.random.Generator, **fields: Any
    ) -> BranchingModel:
        sizes = Architecture(
            observations=observations,
            actions=actions,
            latents=self.latents,
            units=self.units,
            head_units=self.head_units,
            normalisation=self.normalisation,
            scale_floor=self.scale_floor,
            end_rate=end_rate,
        )
        encoders = 1 if self.shared_encoder else self.branches
        encoder = stacked([Encoder(sizes, random=random) for _ in range(encoders)])
        decoder = stacked([Decoder(sizes, random=random) for _ in range(self.branches)])
        return BranchingModel(
            encoder=encoder,
            decoder=decoder,
            weight_root=on_device(np.ones(self.branches)),
            shared_encoder=self.shared_encoder,
            window=self.window,
            **fields,
        )

    @staticmethod
    def ends(world: BranchingModel) -> bool:
        return world.decoder.ending is not None


def _check_settings(settings: VLBM) -> None:
    check_training(settings, ("branches", "latents", "units"))
    for name in ("window", "reencode_every"):
        value = getattr(settings, name)
        if value is not None and value < 1:
            raise InputError(f"setting {name}={value}: must be at least 1, or none")
    if settings.units < 2 and settings.alignment == "pairwise":
        raise InputError("setting units=1: pairwise alignment needs at least 2 units")
    if not settings.head_units:
        raise InputError("setting head_units: at least one hidden layer is needed")
