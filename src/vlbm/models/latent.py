"""Encoder and decoder: the two halves of a variational latent model."""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from vlbm.distributions import Bernoulli, Normal
from vlbm.networks import LSTM, MLP, BernoulliHead, GaussianHead, Linear, LSTMState, NormalisationKind
from vlbm.recurrence import delayed, hoist_weight_gradients, stacked_lstm_scan, turn


class Architecture(NamedTuple):
    """Sizes of the networks."""

    observations: int
    actions: int
    latents: int
    units: int
    head_units: tuple[int, ...]
    normalisation: NormalisationKind
    scale_floor: float
    end_rate: float  # share of logged steps that ended their episode; 0 leaves the ending head out


class Posterior(NamedTuple):
    """What the encoder makes of a window."""

    latent: Float[Array, "steps+1 batch latent"]
    distribution: Normal  # [steps+1, batch, latent]
    hidden: Float[Array, "steps batch units"]


class Emission(NamedTuple):
    """What latents say about the data, in standardised units."""

    observation: Normal
    reward: Normal
    ending: Bernoulli | None

    def mixed(self, weight: Float[Array, " branches"]) -> Emission:
        ending = None if self.ending is None else self.ending.mixed(weight)
        return Emission(self.observation.mixed(weight), self.reward.mixed(weight), ending)


class Encoder(eqx.Module):
    """q(z_0 | s_0) and q(z_t | z_{t-1}, a_{t-1}, s_t)."""

    initial: MLP
    initial_head: GaussianHead
    lstm: LSTM
    dense: Linear
    head: GaussianHead

    def __init__(self, sizes: Architecture, *, random: np.random.Generator):
        self.initial = MLP(
            (sizes.observations, *sizes.head_units), normalisation=sizes.normalisation, random=random
        )
        floor = sizes.scale_floor
        self.initial_head = GaussianHead(sizes.head_units[-1], sizes.latents, floor=floor, random=random)
        self.lstm = LSTM(
            sizes.actions + sizes.observations, sizes.units, feedback=sizes.latents, random=random
        )
        self.dense = Linear(sizes.units, sizes.units, random=random)
        self.head = GaussianHead(sizes.units, sizes.latents, floor=floor, random=random)

    def begin(self, observation: Float[Array, "*batch obs"]) -> Normal:
        return self.initial_head(self.initial(observation))

    def merged(self) -> Encoder:
        """The same outside training, with fewer parts."""
        return eqx.tree_at(lambda encoder: encoder.initial, self, self.initial.merged())

    def infer(
        self,
        observation: Float[Array, "steps+1 batch obs"],
        action: Float[Array, "steps batch act"],
        *,
        first: Normal,
        noise: Float[Array, "steps+1 batch latent"],
    ) -> Posterior:
        """The posterior along a window that starts from `first`, q(z_0 | s_0)."""
        projected = self.lstm.project(jnp.concatenate([action, observation[1:]], axis=-1))
        weights = (self.lstm.recurrent.weight, self.dense.weight, self.head.linear.weight)
        offsets = (
            projected,
            jnp.broadcast_to(self.dense.bias, (*projected.shape[:-1], self.dense.bias.shape[0])),
            jnp.broadcast_to(self.head.linear.bias, (*projected.shape[:-1], self.head.linear.bias.shape[0])),
        )
        latent = first.sample(noise[0])
        run = hoist_weight_gradients(self._run, self._factors)
        latents, later, hidden = run(weights, offsets, (latent, noise[1:]))
        return Posterior(
            jnp.concatenate([latent[None], latents]),
            jax.tree.map(lambda head, tail: jnp.concatenate([head[None], tail]), first, later),
            hidden,
        )

    def _run(
        self, weights: tuple[Array, ...], offsets: tuple[Array, ...], rest: tuple[Array, Array]
    ) -> tuple[Array, Normal, Array]:
        """Latents, their distributions and hidden states from the second step on."""
        recurrent, dense, head = weights
        latent, noise = rest

        def advance(carry: tuple[LSTMState, Array], inputs: tuple[Array, ...]):
            state, latent = carry
            gate_offset, dense_offset, head_offset, noise = inputs
            gates = gate_offset + jnp.concatenate([state.hidden, latent], axis=-1) @ recurrent
            state = self.lstm.gated(state, gates)
            features = jax.nn.relu(state.hidden @ dense + dense_offset)
            distribution = self.head.distribution(features @ head + head_offset)
            latent = distribution.sample(noise)
            return (state, latent), (latent, distribution, state.hidden)

        start = (self.lstm.zero(latent.shape[:-1]), latent)
        return jax.lax.scan(advance, start, (*offsets, noise), unroll=turn(noise))[1]

    def _factors(
        self,
        weights: tuple[Array, ...],
        offsets: tuple[Array, ...],
        rest: tuple[Array, Array],
        outputs: tuple[Array, Normal, Array],
    ) -> tuple[Array, ...]:
        latents, _, hidden = outputs
        before = (delayed(jnp.zeros_like(hidden[0]), hidden), delayed(rest[0], latents))
        features = jax.nn.relu(hidden @ weights[1] + offsets[1])
        return jnp.concatenate(before, axis=-1), hidden, features


class Decoder(eqx.Module):
    """One branch: p(z_t | z_{t-1}, a_{t-1}), p(s_t | z_t), p(r_{t-1} | z_t) and p(d_t | z_t)."""

    lstm: LSTM
    alignment: MLP
    dense: Linear
    transition_head: GaussianHead
    observation: MLP
    observation_head: GaussianHead
    reward: MLP
    reward_head: GaussianHead
    ending: MLP | None
    ending_head: BernoulliHead | None

    def __init__(self, sizes: Architecture, *, random: np.random.Generator):

        def mlp(inputs: int, hidden: tuple[int, ...]) -> MLP:
            return MLP((inputs, *hidden), normalisation=sizes.normalisation, random=random)

        floor, last = sizes.scale_floor, sizes.head_units[-1]
        self.lstm = LSTM(sizes.latents + sizes.actions, sizes.units, random=random)
        self.alignment = mlp(sizes.units, (sizes.units,))
        self.dense = Linear(sizes.units, sizes.units, random=random)
        self.transition_head = GaussianHead(sizes.units, sizes.latents, floor=floor, random=random)
        self.observation = mlp(sizes.latents, sizes.head_units)
        self.observation_head = GaussianHead(last, sizes.observations, floor=floor, random=random)
        self.reward = mlp(sizes.latents, sizes.head_units)
        self.reward_head = GaussianHead(last, 1, floor=floor, random=random)
        ends = sizes.end_rate > 0
        self.ending = mlp(sizes.latents, sizes.head_units) if ends else None
        self.ending_head = BernoulliHead(last, base_rate=sizes.end_rate, random=random) if ends else None

    def merged(self) -> Decoder:
        """The same outside training, with fewer parts."""
        networks = {name: getattr(self, name) for name in ("alignment", "observation", "reward", "ending")}
        merged = {name: mlp and mlp.merged() for name, mlp in networks.items()}
        return eqx.tree_at(lambda decoder: decoder.lstm, replace_networks(self, **merged), self.lstm.merged())

    def transition(self, aligned: Float[Array, "*batch units"]) -> Normal:
        return self.transition_head(jax.nn.relu(self.dense(aligned)))

    def observe(self, latent: Float[Array, "*batch latent"]) -> Normal:
        return self.observation_head(self.observation(latent))

    def settle(self, latent: Float[Array, "*batch latent"]) -> tuple[Normal, Bernoulli | None]:
        """Reward and ending, on which nothing that follows depends."""
        ending = self.ending_head(self.ending(latent)) if self.ending and self.ending_head else None
        return _squeezed(self.reward_head(self.reward(latent))), ending

    def emit(self, latent: Float[Array, "*batch latent"]) -> Emission:
        return Emission(self.observe(latent), *self.settle(latent))

    def emit_in_training(
        self,
        latent: Float[Array, "start+steps batch latent"],
        valid: Bool[Array, "start+steps batch"],
        *,
        start: int,
    ) -> tuple[Emission, Decoder]:
        """As `emit` with batch statistics; the latent that starts a window has no reward and no ending."""
        later, later_valid = latent[start:], valid[start:]
        observation, observation_mlp = self.observation.train(latent, valid)
        reward, reward_mlp = self.reward.train(later, later_valid)
        ending, ending_mlp = None, None
        if self.ending and self.ending_head:
            features, ending_mlp = self.ending.train(later, later_valid)
            ending = self.ending_head(features)
        moved = replace_networks(self, observation=observation_mlp, reward=reward_mlp, ending=ending_mlp)
        return Emission(
            self.observation_head(observation), _squeezed(self.reward_head(reward)), ending
        ), moved


def recur(
    decoder: Decoder,
    latent: Float[Array, "steps *encoder batch latent"],
    action: Float[Array, "steps batch act"],
) -> Float[Array, "steps branch batch units"]:
    """Stacked decoders' hidden states along a window, driven by the latents of one encoder or of each."""
    if latent.ndim > action.ndim:
        action = jnp.broadcast_to(action[:, None], (*latent.shape[:-1], action.shape[-1]))
    inputs = jnp.concatenate([latent, action], axis=-1)
    return stacked_lstm_scan(decoder.lstm, inputs, sloping=latent.shape[-1])


def replace_networks(decoder: Decoder, **networks: MLP | None) -> Decoder:
    """The decoder with some of its networks exchanged (their running averages have moved)."""
    names = [name for name, network in networks.items() if network is not None]
    return eqx.tree_at(
        lambda tree: [getattr(tree, name) for name in names],
        decoder,
        [networks[name] for name in names],
        is_leaf=lambda node: isinstance(node, MLP),
    )


def _squeezed(distribution: Normal) -> Normal:
    return Normal(distribution.mean[..., 0], distribution.scale[..., 0])
