"""VLBM: the settings of the branching model, and how it is fitted to logged episodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from vlbm.data.sampler import Plan, Window
from vlbm.data.scaler import Scaler
from vlbm.errors import InputError
from vlbm.estimators.world_models.settings import WorldModel, check_training
from vlbm.nn.layers import MLP, BernoulliMLP, GaussianMLP, LayerKind, LSTMCell
from vlbm.nn.training import LossOutput
from vlbm.worlds.base import Imagination, SamplingKind
from vlbm.worlds.vlbm import (
    Branch,
    BranchingModel,
    Encoder,
    RsaKind,
    TerminationKind,
    Weights,
    algorithm_1,
)


@dataclass(frozen=True)
class VLBM(WorldModel):
    """The variational latent branching model; the defaults are the `default` preset.

    Args:
        branches: Decoder branches.
        latents: Size of the latent.
        units: Size of the recurrent state.
        head_units: Hidden layers of encoder and decoder heads.
        g_units: Hidden layers of g; its last layer is linear.
        activation: Between layers.
        normalisation: Batch normalisation, or none.
        spread: What softplus gives.
        scale_floor: Smallest scale of a predicted number, in deviations of the logged ones.
        ensemble: An encoder for every branch: an ensemble of whole models.
        standardise_actions: Whether networks see standardised actions.
        drive: Whose latents a branch follows in training: its `own`, or the `encoder`'s.
        start: z_0 from q(z_0|s_0) and a logged state (`encoder`), or from N(0, I) (`prior`).
        emission: Whether decoders emit states or differences to the state before.
        rsa: Which recurrent state alignment.
        rsa_weight: C1 of the paper.
        elbo_weight: C2 of the paper; one over the branches averages their bounds.
        kl_weight: Weight of the KL terms.
        initial_kl_weight: Weight of the KL term of z_0.
        mixture_weight: Weight of the mixture's likelihood; 0 trains branches by their bounds alone.
        termination: Whose likelihood of terminations counts.
        window: Steps of a training window; None trains on whole episodes.
        at_start: Share of windows that begin with an episode.
        batch: Windows in a batch.
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
        models: How many are trained, from different seeds; the estimates of those kept are averaged.
        keep: How many are kept, those that validate best; None keeps all.
        sampling: What is drawn in an imagined episode: `all`, `latents`, or `none` (means).
        reencode_every: Imagined steps after which the latent is read off the predicted state again; None
            never does.
        clip_margin: How far predictions may leave the logged range, as a share of it; None lets them.
        method: What tables call it.
    """

    # The networks
    branches: int = 3
    latents: int = 32
    units: int = 128
    head_units: tuple[int, ...] = (128, 64)
    g_units: tuple[int, ...] = (128,)
    activation: Literal["silu", "relu"] = "silu"
    normalisation: Literal["none", "batch"] = "none"
    spread: Literal["scale", "variance"] = "scale"
    scale_floor: float = 0.01
    ensemble: bool = False
    standardise_actions: bool = True
    # The model
    drive: Literal["own", "encoder"] = "own"
    start: Literal["encoder", "prior"] = "encoder"
    emission: Literal["state", "difference"] = "difference"
    # The objective
    rsa: RsaKind = "pairwise"
    rsa_weight: float = 0.1
    elbo_weight: float = 1 / 3
    kl_weight: float = 0.1
    initial_kl_weight: float = 0.01
    mixture_weight: float = 1.0
    termination: TerminationKind = "both"
    # The training
    window: int | None = 10
    at_start: float = 0.1
    batch: int = 128
    steps: int = 4000
    learning_rate: float = 3e-3
    warm_up: int = 100
    decay: Literal["cosine", "exponential"] = "cosine"
    decay_rate: float = 0.05
    clip: float | None = 200.0
    weight_decay: float = 0.0
    held_out: float = 0.1
    validate_every: int = 400
    models: int = 4
    keep: int | None = 3
    # The imagination
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

    def plan(self, longest: int) -> Plan:
        if self.window is None:
            return Plan(self.batch, longest, whole=True)
        return Plan(self.batch, self.window, at_start=self.at_start)

    @property
    def weights(self) -> Weights:
        return Weights(
            mixture=self.mixture_weight,
            rsa=self.rsa,
            rsa_weight=self.rsa_weight,
            elbo_weight=self.elbo_weight,
            kl_weight=self.kl_weight,
            initial_kl_weight=self.initial_kl_weight,
            termination=self.termination,
        )

    def loss(self, model: BranchingModel, batch: Window, key: PRNGKeyArray) -> LossOutput:
        loss, terms, moved = algorithm_1(model, batch, self.weights, key=key)
        return LossOutput(loss, {"loss": loss, **terms._asdict()}, moved)

    def build(
        self,
        *,
        observations: int,
        actions: int,
        termination_rate: float,
        key: PRNGKeyArray,
        change: Scaler,
        **fields: Any,
    ) -> BranchingModel:
        """Branches differ by their initial weights; a termination rate of 0 leaves p(d_t|z_t) out."""
        kind = LayerKind(self.activation, self.normalisation, self.spread, self.scale_floor)
        latents, units, differences = self.latents, self.units, self.emission == "difference"

        def make_encoder(key: PRNGKeyArray) -> Encoder:
            keys = jax.random.split(key, 3)
            return Encoder(
                initial=GaussianMLP((observations, *self.head_units, latents), kind, key=keys[0]),
                lstm=LSTMCell(latents + actions + observations, units, key=keys[1]),
                later=GaussianMLP((units, units, latents), kind, key=keys[2]),
            )

        def make_branch(key: PRNGKeyArray) -> Branch:
            keys, head, rate = jax.random.split(key, 6), (latents, *self.head_units), termination_rate
            inputs = latents + actions + (observations if differences else 0)
            return Branch(
                lstm=LSTMCell(inputs, units, key=keys[0]),
                g=MLP((units, *self.g_units, units), kind, key=keys[1]),
                transition=GaussianMLP((units, units, latents), kind, key=keys[2]),
                state=GaussianMLP((*head, observations), kind, key=keys[3]),
                reward=GaussianMLP((*head, 1), kind, key=keys[4]),
                termination=BernoulliMLP(head, kind, base_rate=rate, key=keys[5]) if rate else None,
                change=change.scale if differences else None,
            )

        encoder_key, branch_key = jax.random.split(key)
        several = jax.random.split(encoder_key, self.branches)
        return BranchingModel(
            encoder=eqx.filter_vmap(make_encoder)(several) if self.ensemble else make_encoder(encoder_key),
            branches=eqx.filter_vmap(make_branch)(jax.random.split(branch_key, self.branches)),
            weight_root=jnp.ones(self.branches),
            terminates=termination_rate > 0,
            ensemble=self.ensemble,
            drive=self.drive,
            start=self.start,
            window=self.window,
            **fields,
        )


def _check_settings(settings: VLBM) -> None:
    check_training(settings, ("branches", "latents", "units"))
    for name in ("window", "reencode_every"):
        value = getattr(settings, name)
        if value is not None and value < 1:
            raise InputError(f"setting {name}={value}: must be at least 1, or none")
    if settings.units < 2 and settings.rsa == "pairwise":
        raise InputError("setting units=1: pairwise RSA needs at least 2 units")
    for name in ("head_units", "g_units"):
        if not getattr(settings, name):
            raise InputError(f"setting {name}: at least one hidden layer is needed")
    if settings.emission == "difference" and settings.start == "prior":
        raise InputError(
            "setting emission=difference: it needs start=encoder, as differences add up from a known state"
        )
