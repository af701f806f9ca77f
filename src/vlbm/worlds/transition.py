"""What worlds share whose state is the observation itself: one step is predicted from it and the action."""

from __future__ import annotations

from typing import Literal, NamedTuple, NoReturn

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from vlbm.data.sampler import Window
from vlbm.data.scaler import Scaler
from vlbm.errors import InputError
from vlbm.nn.distributions import Bernoulli, Normal
from vlbm.worlds.base import Outcome, World

EmissionKind = Literal["difference", "state"]


class Prediction(NamedTuple):
    """p(y | s, a), y being the standardised change of s, or s', and then the reward; and p(d | s, a)."""

    values: Normal
    termination: Bernoulli | None

    def log_likelihood(self, target: Target) -> Float[Array, ""]:
        return self.values.log_prob(target.values).sum(-1)

    def termination_log_prob(self, target: Target) -> Float[Array, ""]:
        return jnp.zeros(()) if self.termination is None else self.termination.log_prob(target.terminated)


class Target(NamedTuple):
    """What a step led to, in standardised units."""

    values: Float[Array, " obs+1"]
    terminated: Float[Array, ""]


class TransitionWorld(World):
    """p(s', r, d | s, a), where s' is predicted as a change of s, or as it is.

    Most of what will be observed is what is observed now; with changes networks only have to learn the rest,
    and they are standardised once more, so that slow columns count as much as fast ones.
    """

    change: eqx.AbstractVar[Scaler]  # of standardised observations, from one step to the next
    emission: eqx.AbstractVar[EmissionKind]

    def reset_from_prior(self, key: PRNGKeyArray) -> NoReturn:
        raise InputError(
            f"{type(self).__name__} cannot imagine how an episode begins; give initial observations"
        )

    def inputs(self, s: Float[Array, " obs"], action: Array) -> Float[Array, " obs+act"]:
        return jnp.concatenate([s, self.scale_action(action)])

    def read(self, window: Window) -> tuple[Float[Array, " obs+act"], Target]:
        """The only step of a window: what is known, and what it led to."""
        before, after = self.observation.apply(window.observation)
        reward = self.reward.apply(window.reward)
        values = jnp.concatenate([self.encode_state(before, after), reward])
        return self.inputs(before, window.action[0]), Target(values, window.terminated[0])

    def encode_state(self, s: Float[Array, " obs"], after: Float[Array, " obs"]) -> Float[Array, " obs"]:
        """What is to be predicted of the state after s."""
        return after if self.emission == "state" else self.change.apply(after - s)

    def decode_state(self, s: Float[Array, " obs"], values: Float[Array, " obs"]) -> Float[Array, " obs"]:
        """The state after s, within the logged range, where that was predicted of it."""
        after = values if self.emission == "state" else s + self.change.invert(values)
        return self.clip(self.observation, after)

    def move(
        self, s: Float[Array, " obs"], values: Float[Array, " obs+1"], termination: Bernoulli | None
    ) -> tuple[Float[Array, " obs"], Outcome]:
        """The standardised observation after s, and the step's outcome within the logged range."""
        after = self.decode_state(s, values[:-1])
        reward = self.clip(self.reward, values[-1:])
        ends = jnp.zeros(()) if termination is None else termination.probability
        return after, Outcome(self.observation.invert(after), self.reward.invert(reward)[0], ends)

    def draw_values(self, key: PRNGKeyArray) -> Float[Array, " obs+1"]:
        """Noise for a change and a reward; there are no latents, so "latents" draws no more than "none"."""
        shape = (self.observation.mean.shape[0] + 1,)
        return jax.random.normal(key, shape) if self.imagination.sampling == "all" else jnp.zeros(shape)
