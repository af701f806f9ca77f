"""A feed-forward ensemble: several networks, each predicting the whole step at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from vlbm.distributions import Bernoulli, Normal
from vlbm.models.base import Imagination, Outcome
from vlbm.models.latent import Emission
from vlbm.models.transition import Likelihood, Sizes, TransitionModel, likelihood
from vlbm.networks import MLP, BernoulliHead, GaussianHead
from vlbm.scaling import Scaler
from vlbm.windows import Window

# Who says what happens: the average of all members, or one of them, chosen for each imagined episode or
# afresh at every step.
EnsembleKind = Literal["average", "episode", "step"]


@dataclass(frozen=True)
class EnsembleImagination(Imagination):
    """How an ensemble is unrolled."""

    ensemble: EnsembleKind = "average"


class EnsembleState(NamedTuple):
    """Where an imagined episode stands."""

    observation: Float[Array, "*batch obs"]  # standardised
    member: Int[Array, "*batch"]  # which one imagines this episode, if one does


class FeedForwardNetwork(eqx.Module):
    """One member: (s, a) to the change of s, the reward and the ending."""

    trunk: MLP
    head: GaussianHead  # of changes, then of the reward
    ending_head: BernoulliHead | None

    def __init__(
        self, sizes: Sizes, *, units: tuple[int, ...], scale_floor: float, random: np.random.Generator
    ):
        inputs = sizes.observations + sizes.actions
        self.trunk = MLP((inputs, *units), normalisation="none", random=random)
        self.head = GaussianHead(units[-1], sizes.observations + 1, floor=scale_floor, random=random)
        ends = sizes.end_rate > 0
        self.ending_head = BernoulliHead(units[-1], base_rate=sizes.end_rate, random=random) if ends else None

    def __call__(self, inputs: Float[Array, "*batch obs+act"]) -> Emission:
        features = self.trunk(inputs)
        values = self.head(features)
        return Emission(
            observation=Normal(values.mean[..., :-1], values.scale[..., :-1]),
            reward=Normal(values.mean[..., -1], values.scale[..., -1]),
            ending=None if self.ending_head is None else self.ending_head(features),
        )


class FeedForwardModel(TransitionModel):
    """Members that differ by where they started; what they agree on is what the data say."""

    network: FeedForwardNetwork  # stacked: one for every member
    observation: Scaler
    reward: Scaler
    action: Scaler
    change: Scaler
    choices: int | None = eqx.field(static=True)
    imagination: EnsembleImagination = eqx.field(static=True)

    @property
    def members(self) -> int:
        return self.network.head.linear.bias.shape[0]

    def emit(self, inputs: Float[Array, "*batch obs+act"]) -> Emission:
        """Every member's prediction, [member, *batch, ...]."""
        return eqx.filter_vmap(FeedForwardNetwork.__call__, in_axes=(eqx.if_array(0), None))(
            self.network, inputs
        )

    def log_likelihood(self, window: Window) -> Likelihood:
        """Every member's log-likelihood per valid step."""
        inputs, target = self.read(window)
        return likelihood(self.emit(inputs), target, window.valid)

    def begin(self, observation: Float[Array, "*batch obs"], *, key: PRNGKeyArray) -> EnsembleState:
        batch = observation.shape[:-1]
        # Members take turns from a random one on, so that each imagines as many episodes as the others.
        first = jax.random.randint(key, (), 0, self.members)
        member = (first + jnp.arange(batch[-1])) % self.members
        return EnsembleState(self.observation.apply(observation), jnp.broadcast_to(member, batch))

    def luck(self, count: int, *, key: PRNGKeyArray) -> tuple[Array, Array]:
        """Noise for every value, and a member for every episode."""
        noise_key, member_key = jax.random.split(key)
        noise = self.noise(noise_key, (count, self.observation.mean.shape[0] + 1))
        return noise, jax.random.randint(member_key, (count,), 0, self.members)

    def step(
        self, state: EnsembleState, action: Array, *, luck: tuple[Array, Array]
    ) -> tuple[EnsembleState, Outcome]:
        before, member = state
        noise, drawn = luck
        emission = self.emit(self.inputs(before, action))
        if self.imagination.ensemble == "average":
            chosen = averaged(emission)
        else:
            if self.imagination.ensemble == "step":
                member = drawn
            chosen = picked(emission, jnp.broadcast_to(member, before.shape[:-1]))
        after, reward = self.moved(
            before, chosen.observation.sample(noise[..., :-1]), chosen.reward.sample(noise[..., -1])
        )
        ending = None if chosen.ending is None else chosen.ending.probability
        return EnsembleState(after, state.member), self.outcome(after, reward, ending)


def averaged(emission: Emission) -> Emission:
    """Means of the members' means, variances and probabilities.

    Unlike the branches' consensus, whose variance shrinks with their number, this keeps the noise that
    the members see: each was trained to explain the data alone.
    """
    members = emission.reward.mean.shape[0]

    def average(distribution: Normal) -> Normal:
        return Normal(distribution.mean.mean(0), jnp.sqrt((distribution.scale**2).mean(0)))

    ending = None if emission.ending is None else emission.ending.mixed(jnp.full(members, 1.0 / members))
    return Emission(average(emission.observation), average(emission.reward), ending)


def picked(emission: Emission, member: Int[Array, "*batch"]) -> Emission:
    """One member's prediction for each element of the batch."""

    def pick(leaf: Array) -> Array:
        index = member[None] if leaf.ndim == member.ndim + 1 else member[None, ..., None]
        return jnp.take_along_axis(leaf, index, axis=0)[0]

    ending = None if emission.ending is None else Bernoulli(pick(emission.ending.logit))
    return Emission(
        Normal(pick(emission.observation.mean), pick(emission.observation.scale)),
        Normal(pick(emission.reward.mean), pick(emission.reward.scale)),
        ending,
    )
