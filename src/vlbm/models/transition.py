"""What worlds share whose state is the observation itself: one step is predicted from it and the action."""

from __future__ import annotations

from typing import NamedTuple, NoReturn

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from vlbm.devices import everywhere
from vlbm.errors import InputError
from vlbm.models.base import Outcome, World
from vlbm.models.latent import Emission
from vlbm.scaling import Scaler
from vlbm.windows import Window


class Sizes(NamedTuple):
    """What the data say about the networks' shape."""

    observations: int
    actions: int
    end_rate: float  # share of logged steps that ended their episode; 0 leaves endings out


class Target(NamedTuple):
    """What each step led to, in standardised units."""

    change: Float[Array, "*batch obs"]
    reward: Float[Array, "*batch"]
    ended: Float[Array, "*batch"]


class Likelihood(NamedTuple):
    """Log-likelihoods per valid step: of observations and rewards, and of endings."""

    data: Float[Array, "*members"]
    ending: Float[Array, "*members"]


class TransitionModel(World):
    """p(s', r, d | s, a), where s' is predicted as a change of s.

    Most of what will be observed is what is observed now; networks only have to learn the rest, and
    changes are standardised once more, so that slow columns count as much as fast ones.
    """

    change: eqx.AbstractVar[Scaler]  # of standardised observations, from one step to the next

    def begin_from_prior(self, batch: tuple[int, ...], *, key: PRNGKeyArray) -> NoReturn:
        raise InputError(
            f"{type(self).__name__} cannot imagine how an episode begins; give initial observations"
        )

    def inputs(
        self, standardised: Float[Array, "*batch obs"], action: Array
    ) -> Float[Array, "*batch obs+act"]:
        return jnp.concatenate([standardised, self.action_inputs(action)], axis=-1)

    def read(self, window: Window) -> tuple[Float[Array, "steps batch obs+act"], Target]:
        """A window's steps, each on its own: what is known, and what it led to."""
        standardised = self.observation.apply(window.observation)
        target = Target(
            change=self.change.apply(standardised[1:] - standardised[:-1]),
            reward=self.reward.apply(window.reward[..., None])[..., 0],
            ended=window.ended,
        )
        return self.inputs(standardised[:-1], window.action), target

    def moved(
        self, before: Float[Array, "*batch obs"], change: Float[Array, "*batch obs"], reward: Array
    ) -> tuple[Float[Array, "*batch obs"], Float[Array, "*batch"]]:
        """The observation after a change, and the reward, both standardised and within the logged range."""
        after, reward = before + self.change.invert(change), reward[..., None]
        margin = self.imagination.clip_margin
        if margin is not None:
            after, reward = self.observation.clip(after, margin), self.reward.clip(reward, margin)
        return after, reward[..., 0]

    def outcome(
        self, standardised: Float[Array, "*batch obs"], reward: Array, ending: Array | None
    ) -> Outcome:
        return Outcome(
            self.observation.invert(standardised),
            self.reward.invert(reward[..., None])[..., 0],
            jnp.zeros(reward.shape) if ending is None else ending,
        )

    def noise(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Array:
        # There are no latents: "latents" draws nothing that "none" does not.
        drawn = self.imagination.sampling == "all"
        return jax.random.normal(key, shape) if drawn else jnp.zeros(shape)


def likelihood(emission: Emission, target: Target, valid: Bool[Array, "steps batch"]) -> Likelihood:
    """How likely the emission finds what happened; members may stand before steps and batch."""
    steps = jnp.maximum(everywhere(valid.sum()), 1)
    data = emission.observation.log_prob(target.change).sum(-1) + emission.reward.log_prob(target.reward)
    ending = None if emission.ending is None else emission.ending.log_prob(target.ended)

    def averaged(values: Array) -> Array:
        # `where`, not a product: whatever padding holds, infinities included, it leaves no trace.
        return jnp.where(valid, values, 0.0).sum((-2, -1)) / steps

    return Likelihood(averaged(data), jnp.zeros(data.shape[:-2]) if ending is None else averaged(ending))
