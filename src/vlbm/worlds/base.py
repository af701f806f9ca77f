"""World: a learnt system in which one episode can be begun and stepped."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from vlbm.data.sampler import Window
from vlbm.data.scaler import Scaler

# What is sampled in roll-outs: everything; latents only, with means of observations and rewards (whose
# variance includes the model's own error); or nothing.
SamplingKind = Literal["all", "latents", "none"]


SHORT = 20  # steps up to which scans are unrolled; longer ones rematerialise to save memory


@dataclass(frozen=True)
class Imagination:
    """How a learnt world is rolled out."""

    sampling: SamplingKind = "all"
    reencode_every: int | None = None  # encode the predicted observation anew every so many steps
    clip_margin: float | None = None  # clip predictions to the logged range, widened by this share of it


class Outcome(NamedTuple):
    """What a step leads to, in raw units."""

    observation: Float[Array, " obs"]
    reward: Float[Array, ""]
    termination: Float[Array, ""]  # probability of termination after this step


class World(eqx.Module):
    """A learnt system, written for one episode; `vmap` makes many of it.

    Everything random is an argument: `draw_noise` draws what one `reset` or `step` needs.
    """

    observation: eqx.AbstractVar[Scaler]
    reward: eqx.AbstractVar[Scaler]
    action: eqx.AbstractVar[Scaler]
    imagination: eqx.AbstractVar[Imagination]
    n_actions: eqx.AbstractVar[int | None]
    terminates: eqx.AbstractVar[bool]  # whether it ever ends episodes

    @property
    def shape(self) -> dict[str, Any]:
        """What a world of the same shape is made from, beside its settings."""
        return {
            "observations": self.observation.mean.shape[0],
            "actions": self.action.mean.shape[0],
            "n_actions": self.n_actions,
            "terminates": self.terminates,
        }

    @abstractmethod
    def draw_noise(self, key: PRNGKeyArray) -> Any:
        """The noise of one step; zeros where means are used."""

    @abstractmethod
    def reset(self, observation: Float[Array, " obs"], noise: Any) -> Any:
        """The state from which to imagine what follows an observation."""

    @abstractmethod
    def reset_from_prior(self, key: PRNGKeyArray) -> tuple[Any, Float[Array, " obs"]]:
        """A state and its observation, sampled from the prior."""

    @abstractmethod
    def step(self, state: Any, action: Array, noise: Any) -> tuple[Any, Outcome]:
        """One step of the imagined system."""

    def scale_action(self, action: Array) -> Float[Array, "*batch act"]:
        """Actions as networks see them: ids as one-hot vectors, vectors standardised."""
        if self.n_actions is not None and jnp.issubdtype(action.dtype, jnp.integer):
            action = jax.nn.one_hot(action, self.n_actions)
        return self.action.apply(action)

    def clip(self, scaler: Scaler, standardised: Float[Array, " size"]) -> Float[Array, " size"]:
        """Predictions within the logged range, if the imagination keeps them there."""
        margin = self.imagination.clip_margin
        return standardised if margin is None else scaler.clip(standardised, margin)


def predict(world: World, window: Window, key: PRNGKeyArray) -> Outcome:
    """Open-loop prediction of one window from its first observation and its actions."""
    reset_key, step_key = jax.random.split(key)
    state = world.reset(window.observation[0], world.draw_noise(reset_key))

    def step(state: Any, inputs: tuple[Array, PRNGKeyArray]) -> tuple[Any, Outcome]:
        action, key = inputs
        return world.step(state, action, world.draw_noise(key))

    keys = jax.random.split(step_key, len(window.action))
    return jax.lax.scan(step, state, (window.action, keys))[1]


def is_short(steps: int) -> bool:
    return steps <= SHORT


def scan(step: Any, start: Any, inputs: Any) -> Any:
    """`lax.scan`: unrolled if short, rematerialised if long."""
    steps = len(jax.tree.leaves(inputs)[0])
    if is_short(steps):
        return jax.lax.scan(step, start, inputs, unroll=steps)
    return jax.lax.scan(jax.checkpoint(step), start, inputs)
