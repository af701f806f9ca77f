"""The variational latent branching model: one encoder, many decoders, one latent space."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from vlbm.devices import selected
from vlbm.distributions import Normal
from vlbm.episodes import Episodes
from vlbm.models.base import Imagination, Outcome, World
from vlbm.models.latent import Decoder, Encoder
from vlbm.networks import LSTMState
from vlbm.scaling import Scaler

WEIGHT_EPSILON = 1e-8


class BranchState(NamedTuple):
    """Where each branch of an imagined episode stands."""

    latent: Float[Array, "branch *batch latent"]
    lstm: LSTMState  # [branch, *batch, units]
    age: Int[Array, "*batch"]  # steps since the latent was last read off an observation


class Luck(NamedTuple):
    """Standard normal numbers for a step."""

    latent: Float[Array, "*batch branch latent"]
    first: Float[Array, "*batch latent"]  # for a latent that is read off an observation
    observation: Float[Array, "*batch obs"]
    reward: Float[Array, "*batch 1"]


class BranchingModel(World):
    """B decoders that read one latent space, weighted by w_b; B = 1 is the VLM.

    With one encoder the branches share a latent space; with as many encoders as branches it is the
    classic ensemble of whole models.
    """

    encoder: Encoder  # stacked: one, or one for every branch
    decoder: Decoder  # stacked: one for every branch
    weight_root: Float[Array, " branch"]
    observation: Scaler
    reward: Scaler
    action: Scaler
    shared_encoder: bool = eqx.field(static=True)
    choices: int | None = eqx.field(static=True)
    window: int | None = eqx.field(static=True)  # steps per training window; None for whole episodes
    imagination: Imagination = eqx.field(static=True)

    @property
    def weight(self) -> Float[Array, " branch"]:
        squared = self.weight_root**2
        return squared / (WEIGHT_EPSILON + squared.sum())

    @property
    def branches(self) -> int:
        return self.weight_root.shape[0]

    @property
    def encoders(self) -> int:
        return 1 if self.shared_encoder else self.branches

    @property
    def latents(self) -> int:
        return self.encoder.head.linear.bias.shape[-1] // 2

    def begin(self, observation: Float[Array, "*batch obs"], *, key: PRNGKeyArray) -> BranchState:
        noise = self._noise(key, (observation.shape[-2], self.latents))
        return self._begin(self.observation.apply(observation), noise)

    def begin_from_prior(
        self, batch: tuple[int, ...], *, key: PRNGKeyArray
    ) -> tuple[BranchState, Float[Array, "*batch obs"]]:
        latent_key, observation_key = jax.random.split(key)
        # The prior is always sampled: its mean is a single state.
        noise = jax.random.normal(latent_key, (batch[-1], self.latents))
        latent = jnp.broadcast_to(noise, (self.branches, *batch, self.latents))
        state = BranchState(latent, self._zero_lstm(batch), jnp.zeros(batch, jnp.int32))
        emission = eqx.filter_vmap(Decoder.emit)(self.decoder, latent).mixed(self.weight)
        observation_noise = self._noise(observation_key, (batch[-1], self.observation.mean.shape[0]))
        if self.imagination.sampling == "latents":
            observation_noise = jnp.zeros_like(observation_noise)
        return state, self.observation.invert(
            self._clip(self.observation, emission.observation, observation_noise)
        )

    def luck(self, count: int, *, key: PRNGKeyArray) -> Luck:
        # One draw for everything that is random in a step: it compiles faster than many small ones.
        parts = [self.branches * self.latents, self.latents, self.observation.mean.shape[0], 1]
        noise = jnp.split(self._noise(key, (count, sum(parts))), np.cumsum(parts)[:-1].tolist(), axis=-1)
        if self.imagination.sampling == "latents":
            noise[2:] = [jnp.zeros_like(part) for part in noise[2:]]
        return Luck(noise[0].reshape(count, self.branches, self.latents), *noise[1:])

    def step(self, state: BranchState, action: Array, *, luck: Luck) -> tuple[BranchState, Outcome]:
        state, observation, latent = self.advance(state, action, luck=luck)
        settled = self.settle(latent[None], jax.tree.map(lambda noise: noise[None], luck))
        return state, Outcome(observation, *(part[0] for part in settled))

    def advance(
        self, state: BranchState, action: Array, *, luck: Luck
    ) -> tuple[BranchState, Float[Array, "*batch obs"], Float[Array, "branch *batch latent"]]:
        inputs = self.action_inputs(action)

        def move(decoder: Decoder, latent: Array, lstm: LSTMState, noise: Array):
            lstm = decoder.lstm.step(lstm, latent, inputs)
            latent = decoder.transition(decoder.alignment(lstm.hidden)).sample(noise)
            return latent, lstm, decoder.observe(latent)

        noise = jnp.moveaxis(luck.latent, -2, 0)
        latent, lstm, seen = eqx.filter_vmap(move)(self.decoder, state.latent, state.lstm, noise)
        observation = self._clip(self.observation, seen.mixed(self.weight), luck.observation)
        moved = BranchState(latent, lstm, state.age + 1)
        if self.imagination.reencode_every is not None:
            fresh = self._begin(observation, luck.first)
            due = moved.age >= self.imagination.reencode_every
            moved = jax.tree.map(lambda new, old: jnp.where(_like(due, old), new, old), fresh, moved)
        return moved, self.observation.invert(observation), latent

    def settle(
        self, remains: Float[Array, "steps branch *batch latent"], luck: Luck
    ) -> tuple[Float[Array, "steps *batch"], Float[Array, "steps *batch"]]:
        latent = jnp.moveaxis(remains, 1, 0)
        paid, ending = eqx.filter_vmap(Decoder.settle)(self.decoder, latent)
        mixed = paid.mixed(self.weight)
        # Axes over which luck is shared stand between steps and episodes.
        shared = mixed.mean.ndim + 1 - luck.reward.ndim
        noise = luck.reward[(slice(None), *(None,) * shared)]
        reward = self._clip(self.reward, Normal(mixed.mean[..., None], mixed.scale[..., None]), noise)
        never = jnp.zeros(mixed.mean.shape)
        return (
            self.reward.invert(reward)[..., 0],
            never if ending is None else ending.mixed(self.weight).probability,
        )

    def kept(
        self, state: BranchState, policies: Int[Array, " some"], seats: Int[Array, "some seats"]
    ) -> BranchState:
        # Branches come before policies.
        rows = policies[:, None]
        latent, lstm = jax.tree.map(lambda leaf: leaf[:, rows, seats], (state.latent, state.lstm))
        return BranchState(latent, lstm, state.age[rows, seats])

    def encode(self, episodes: Episodes) -> Float[np.ndarray, "steps+episodes latent"]:
        """The latent of every observation, row for row as `episodes.observation`."""
        from vlbm.models.encoding import encode

        return encode(self, episodes)

    def pruned(self, threshold: float = 1e-5) -> BranchingModel:
        """The same model without the branches that weigh nothing."""
        keep = np.flatnonzero(np.asarray(self.weight) >= threshold)
        if len(keep) == self.branches:
            return self
        encoder = self.encoder if self.shared_encoder else selected(self.encoder, keep)
        decoder, weight_root = selected((self.decoder, self.weight_root), keep)
        return replace(self, encoder=encoder, decoder=decoder, weight_root=weight_root)

    def laid_out(self) -> BranchingModel:
        encoder = eqx.filter_vmap(Encoder.merged)(self.encoder)
        return replace(self, encoder=encoder, decoder=eqx.filter_vmap(Decoder.merged)(self.decoder))

    def _begin(self, standardised: Float[Array, "*batch obs"], noise: Array) -> BranchState:
        latent = eqx.filter_vmap(lambda encoder: encoder.begin(standardised).sample(noise))(self.encoder)
        batch = standardised.shape[:-1]
        latent = jnp.broadcast_to(latent, (self.branches, *batch, self.latents))
        return BranchState(latent, self._zero_lstm(batch), jnp.zeros(batch, jnp.int32))

    def _zero_lstm(self, batch: tuple[int, ...]) -> LSTMState:
        return self.decoder.lstm.zero((self.branches, *batch))

    def _noise(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Array:
        return jnp.zeros(shape) if self.imagination.sampling == "none" else jax.random.normal(key, shape)

    def _clip(self, scaler: Scaler, distribution: Normal, noise: Array) -> Array:
        value = distribution.sample(noise)
        margin = self.imagination.clip_margin
        return value if margin is None else scaler.clip(value, margin)


def _like(flag: Bool[Array, "*batch"], leaf: Array) -> Array:
    """The per-episode flag, shaped so that it broadcasts against a state's leaf."""
    return flag if leaf.ndim == flag.ndim else flag[None, ..., None]
