"""World: what every learnt model of a system can do."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from vlbm.episodes import Episodes
from vlbm.scaling import Scaler
from vlbm.windows import Window

# What is drawn when imagining: everything; latents only, with the means of observations and rewards (whose
# spread is what a model could not explain, not what a sensor would show); or nothing at all.
SamplingKind = Literal["all", "latents", "none"]


@dataclass(frozen=True)
class Imagination:
    """How a learnt world is unrolled."""

    sampling: SamplingKind = "all"
    reencode_every: int | None = None  # start afresh from the predicted observation every so many steps
    clip_margin: float | None = None  # keep predictions in the logged range, widened by this share of it


class Outcome(NamedTuple):
    """What a step leads to, in raw units."""

    observation: Float[Array, "*batch obs"]
    reward: Float[Array, "*batch"]
    ending: Float[Array, "*batch"]  # probability that the system ends the episode here


class World(eqx.Module):
    """A learnt system that can be begun and stepped, for any batch shape.

    Random draws are shared over all batch axes but the last: with a batch of (policies, episodes),
    every policy meets the same luck. Comparisons are sharper for it, and an estimate does not depend
    on which other policies are evaluated beside it.
    """

    observation: eqx.AbstractVar[Scaler]
    reward: eqx.AbstractVar[Scaler]
    action: eqx.AbstractVar[Scaler]
    imagination: eqx.AbstractVar[Imagination]
    choices: eqx.AbstractVar[int | None]

    @abstractmethod
    def begin(self, observation: Float[Array, "*batch obs"], *, key: PRNGKeyArray) -> Any:
        """The state from which to imagine what follows an observation."""

    @abstractmethod
    def begin_from_prior(
        self, batch: tuple[int, ...], *, key: PRNGKeyArray
    ) -> tuple[Any, Float[Array, "*batch obs"]]:
        """A state, and the observation it shows, imagined from nothing."""

    def luck(self, count: int, *, key: PRNGKeyArray) -> Any:
        """All that is random in a step of so many episodes, which come first in every array.

        For many steps at once it is drawn faster. A world that draws by itself only needs a key.
        """
        return key

    @abstractmethod
    def step(self, state: Any, action: Array, *, luck: Any) -> tuple[Any, Outcome]:
        """One step of the imagined system, given what `luck` drew for it.

        The luck is that of the batch's last axis, or there is some for every element of the batch.
        """

    def advance(self, state: Any, action: Array, *, luck: Any) -> tuple[Any, Float[Array, "*batch obs"], Any]:
        """A step as far as the next one needs it: state, observation, and what `settle` makes the rest of."""
        state, outcome = self.step(state, action, luck=luck)
        return state, outcome.observation, (outcome.reward, outcome.ending)

    def settle(
        self, remains: Any, luck: Any
    ) -> tuple[Float[Array, "steps *batch"], Float[Array, "steps *batch"]]:
        """Rewards of many steps, stacked, and how likely each ends its episode.

        Nothing that follows depends on them, so that they are worked out for many steps at once.
        """
        return remains

    def kept(self, state: Any, policies: Int[Array, " some"], seats: Int[Array, "some seats"]) -> Any:
        """The state of some policies' episodes, of each its own, where the batch is (policies, episodes)."""
        return jax.tree.map(lambda leaf: leaf[policies[:, None], seats], state)

    def encode(self, episodes: Episodes) -> Float[np.ndarray, "steps+episodes latent"]:
        """Latents of logged observations; only latent models have any."""
        raise TypeError(f"{type(self).__name__} has no latents")

    def pruned(self) -> World:
        """The same world without parts that do not matter."""
        return self

    def laid_out(self) -> World:
        """The same world for stepping alone: whatever is the same in every step is worked out."""
        return self

    def action_inputs(self, action: Array) -> Float[Array, "*batch act"]:
        """Actions as networks see them: ids as one-hot vectors, vectors standardised."""
        if self.choices is not None and jnp.issubdtype(action.dtype, jnp.integer):
            action = jax.nn.one_hot(action, self.choices)
        return self.action.apply(action)


def ready(world: World) -> World:
    """The same world for roll-outs: without parts that do not matter, and laid out for stepping."""
    return _laid_out(world.pruned())


@eqx.filter_jit
def _laid_out(world: World) -> World:
    return world.laid_out()


def lucks(world: World, count: int, times: Int[Array, " steps"], *, key: PRNGKeyArray) -> Any:
    """The luck of many steps, stacked; that of each depends on its time alone."""
    return jax.vmap(lambda time: world.luck(count, key=jax.random.fold_in(key, time)))(times)


class OpenLoopError(NamedTuple):
    """Squared errors of predictions under logged actions, in standardised units, step by step."""

    observation: Float[Array, " steps"]
    reward: Float[Array, " steps"]

    @property
    def score(self) -> Float[Array, ""]:
        """One number to compare models by, without any truth: lower is better."""
        return self.observation.mean() + self.reward.mean()


def open_loop_error(world: World, window: Window, *, key: PRNGKeyArray) -> OpenLoopError:
    """How far predictions stray when only the first observation and the logged actions are given."""
    begin_key, step_key = jax.random.split(key)
    state = world.begin(window.observation[0], key=begin_key)
    luck = lucks(world, window.valid.shape[1], jnp.arange(len(window.action)), key=step_key)

    def advance(state: Any, inputs: tuple[Array, Any]) -> tuple[Any, Outcome]:
        action, luck = inputs
        return world.step(state, action, luck=luck)

    _, outcome = jax.lax.scan(advance, state, (window.action, luck))
    weight = window.valid / jnp.maximum(window.valid.sum(axis=1, keepdims=True), 1)

    def error(scaler: Scaler, predicted: Array, logged: Array) -> Array:
        squared = (scaler.apply(predicted) - scaler.apply(logged)) ** 2
        return (jnp.where(window.valid, squared.mean(-1), 0.0) * weight).sum(axis=1)

    return OpenLoopError(
        observation=error(world.observation, outcome.observation, window.observation[1:]),
        reward=error(world.reward, outcome.reward[..., None], window.reward[..., None]),
    )
