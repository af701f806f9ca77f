"""A feed-forward ensemble (MB-FF): several Gaussian networks, each predicting a whole step at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from vlbm.data.sampler import Window
from vlbm.data.scaler import Scaler
from vlbm.nn.distributions import Bernoulli, Normal
from vlbm.nn.layers import MLP, LayerKind, start_at_rate
from vlbm.worlds.base import Imagination, Outcome
from vlbm.worlds.transition import EmissionKind, Prediction, TransitionWorld

# Which member predicts: the average of all, or one of them, sampled per episode or per step.
EnsembleKind = Literal["average", "episode", "step"]


@dataclass(frozen=True)
class EnsembleImagination(Imagination):
    """How an ensemble is rolled out."""

    ensemble: EnsembleKind = "average"


class EnsembleState(NamedTuple):
    """The state of a roll-out."""

    observation: Float[Array, " obs"]  # standardised
    member: Int[Array, ""]  # member of this episode, with ensemble="episode"


class EnsembleNoise(NamedTuple):
    """The noise of a step."""

    values: Float[Array, " obs+1"]
    member: Int[Array, ""]


class Member(eqx.Module):
    """(s, a) to the change of s, the reward and the termination."""

    mlp: MLP  # means, spreads, and the termination's logit
    floor: float = eqx.field(static=True)
    terminates: bool = eqx.field(static=True)

    def __init__(
        self,
        observations: int,
        actions: int,
        *,
        units: tuple[int, ...],
        floor: float,
        termination_rate: float,
        key: PRNGKeyArray,
    ):
        self.floor, self.terminates = floor, termination_rate > 0
        outputs = 2 * (observations + 1) + self.terminates
        mlp = MLP((observations + actions, *units, outputs), LayerKind(), key=key)
        self.mlp = start_at_rate(mlp, termination_rate) if self.terminates else mlp

    def __call__(self, inputs: Float[Array, " obs+act"]) -> Prediction:
        outputs, _ = self.mlp(inputs)
        values, termination = (outputs[:-1], Bernoulli(outputs[-1])) if self.terminates else (outputs, None)
        mean, spread = jnp.split(values, 2)
        return Prediction(Normal(mean, jax.nn.softplus(spread) + self.floor), termination)


class FeedForwardWorld(TransitionWorld):
    """Members that differ by their initial weights."""

    members: Member  # stacked
    observation: Scaler
    reward: Scaler
    action: Scaler
    change: Scaler
    emission: EmissionKind = eqx.field(static=True)
    n_actions: int | None = eqx.field(static=True)
    terminates: bool = eqx.field(static=True)
    imagination: EnsembleImagination = eqx.field(static=True)

    @property
    def count(self) -> int:
        return self.members.mlp.last.weight.shape[0]

    def predict(self, inputs: Float[Array, " obs+act"]) -> Prediction:
        """Every member's prediction, stacked."""
        return eqx.filter_vmap(Member.__call__, in_axes=(eqx.if_array(0), None))(self.members, inputs)

    def objective(self, window: Window) -> dict[str, Float[Array, ""]]:
        """Log-likelihoods of a window of one step, averaged over members; the sum is to be maximised."""
        inputs, target = self.read(window)
        prediction = self.predict(inputs)
        termination = jax.vmap(Prediction.termination_log_prob, in_axes=(0, None))(prediction, target)
        return {"data": prediction.log_likelihood(target).mean(), "termination": termination.mean()}

    def draw_noise(self, key: PRNGKeyArray) -> EnsembleNoise:
        values_key, member_key = jax.random.split(key)
        return EnsembleNoise(self.draw_values(values_key), jax.random.randint(member_key, (), 0, self.count))

    def reset(self, observation: Float[Array, " obs"], noise: EnsembleNoise) -> EnsembleState:
        return EnsembleState(self.observation.apply(observation), noise.member)

    def step(
        self, state: EnsembleState, action: Array, noise: EnsembleNoise
    ) -> tuple[EnsembleState, Outcome]:
        prediction = self.predict(self.inputs(state.observation, action))
        if self.imagination.ensemble == "average":
            chosen = average(prediction)
        else:
            member = state.member if self.imagination.ensemble == "episode" else noise.member
            chosen = jax.tree.map(lambda leaf: leaf[member], prediction)
        after, outcome = self.move(state.observation, chosen.values.sample(noise.values), chosen.termination)
        return EnsembleState(after, state.member), outcome


def average(prediction: Prediction) -> Prediction:
    """Means of the members' means, variances and probabilities.

    Unlike the mixture of branches, whose variance shrinks with their number, this keeps the predicted
    noise: each member was trained to explain the data alone.
    """
    values = prediction.values
    members = values.mean.shape[0]
    uniform = jnp.full(members, 1.0 / members)
    termination = None if prediction.termination is None else prediction.termination.mix(uniform)
    return Prediction(Normal(values.mean.mean(0), jnp.sqrt((values.scale**2).mean(0))), termination)
