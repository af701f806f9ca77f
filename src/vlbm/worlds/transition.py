"""Base of worlds whose state is the observation: one-step transition models."""

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
    """Targets of a prediction, in standardised units."""

    values: Float[Array, " obs+1"]
    terminated: Float[Array, ""]


class TransitionWorld(World):
    """p(s', r, d | s, a), where s' is predicted as a difference to s, or directly.

    Differences are standardised themselves, so that slowly changing columns count as much as fast ones.
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
        """Inputs and targets of a window of one step."""
        before, after = self.observation.apply(window.observation)
        reward = self.reward.apply(window.reward)
        values = jnp.concatenate([self.encode_state(before, after), reward])
        return self.inputs(before, window.action[0]), Target(values, window.terminated[0])

    def encode_state(self, s: Float[Array, " obs"], after: Float[Array, " obs"]) -> Float[Array, " obs"]:
        """The prediction target of the state after s."""
        return after if self.emission == "state" else self.change.apply(after - s)

    def decode_state(self, s: Float[Array, " obs"], values: Float[Array, " obs"]) -> Float[Array, " obs"]:
        """The state after s from its prediction, clipped to the logged range."""
        after = values if self.emission == "state" else s + self.change.invert(values)
        return self.clip(self.observation, after)

    def move(
        self, s: Float[Array, " obs"], values: Float[Array, " obs+1"], termination: Bernoulli | None
    ) -> tuple[Float[Array, " obs"], Outcome]:
        """The standardised observation after s, and the step's outcome, clipped to the logged range."""
        after = self.decode_state(s, values[:-1])
        reward = self.clip(self.reward, values[-1:])
        ends = jnp.zeros(()) if termination is None else termination.probability
        return after, Outcome(self.observation.invert(after), self.reward.invert(reward)[0], ends)

    def draw_values(self, key: PRNGKeyArray) -> Float[Array, " obs+1"]:
        """Noise for a change and a reward; without latents, "latents" samples as little as "none"."""
        shape = (self.observation.mean.shape[0] + 1,)
        return jax.random.normal(key, shape) if self.imagination.sampling == "all" else jnp.zeros(shape)
