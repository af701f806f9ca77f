"""An auto-regressive ensemble: p(y_j | s, a, y_<j), y being changes of s, or s', and then the reward."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from vlbm.data.sampler import Window
from vlbm.data.scaler import Scaler
from vlbm.nn.distributions import Bernoulli, Normal
from vlbm.nn.layers import MLP, LayerKind, Linear, start_at_rate
from vlbm.worlds.base import Imagination, Outcome
from vlbm.worlds.transition import EmissionKind, Prediction, TransitionWorld
from vlbm.worlds.vlbm import branch_weights


class Member(eqx.Module):
    """One masked network for all conditionals (as in MADE), so that training needs a single pass.

    y_j has rank j + 1 and what predicts it rank j; values reach units and outputs of their rank or above.
    What depends on (s, a) alone, most of the work, is not masked.
    """

    mlp: MLP  # (s, a) to masked units, and to outputs: means, spreads, and the termination's logit
    enter: Float[Array, "ranks units values"]  # values to the masked units of every rank
    leave: Float[Array, "outputs ranks units"]  # masked units to outputs
    skip: Float[Array, "outputs values"]  # values to outputs
    terminates: bool = eqx.field(static=True)
    floor: float = eqx.field(static=True)

    def __init__(
        self,
        observations: int,
        actions: int,
        *,
        units: tuple[int, ...],
        masked_units: int,
        floor: float,
        termination_rate: float,
        key: PRNGKeyArray,
    ):
        keys = jax.random.split(key, 4)
        values = observations + 1
        self.terminates, self.floor = termination_rate > 0, floor
        ranks, outputs = values + self.terminates, 2 * values + self.terminates
        hidden = ranks * masked_units
        mlp = MLP((observations + actions, *units, hidden + outputs), LayerKind(), key=keys[0])
        self.mlp = start_at_rate(mlp, termination_rate) if self.terminates else mlp
        self.enter = Linear(values, hidden, key=keys[1]).weight.reshape(ranks, masked_units, values)
        self.leave = Linear(hidden, outputs, key=keys[2]).weight.reshape(outputs, ranks, masked_units)
        self.skip = Linear(values, outputs, key=keys[3]).weight

    def __call__(self, inputs: Float[Array, " obs+act"], values: Float[Array, " values"]) -> Prediction:
        """All conditionals at once, each given the values before it: masks cut what comes later."""
        offset, direct = self.read(inputs)
        count, ranks = len(values), np.arange(len(offset))
        output_rank = np.concatenate([ranks[:count], ranks[:count], ranks[count:]])
        value_rank = np.arange(count) + 1
        enter = jnp.where((value_rank <= ranks[:, None])[:, None], self.enter, 0.0)
        leave = jnp.where((ranks <= output_rank[:, None])[..., None], self.leave, 0.0)
        skip = jnp.where(value_rank <= output_rank[:, None], self.skip, 0.0)
        hidden = jax.nn.silu(offset + enter @ values)
        outputs = direct + jnp.tensordot(leave, hidden, axes=2) + skip @ values
        termination = Bernoulli(outputs[-1]) if self.terminates else None
        return Prediction(Normal(outputs[:count], self.scale(outputs[count : 2 * count])), termination)

    def read(self, inputs: Float[Array, " obs+act"]) -> tuple[Array, Array]:
        """What (s, a) contribute to masked units, rank by rank, and to outputs."""
        outputs, _ = self.mlp(inputs)
        ranks, units, _ = self.enter.shape
        return outputs[: ranks * units].reshape(ranks, units), outputs[ranks * units :]

    def advance(
        self, read: tuple[Array, Array], hidden: Float[Array, "ranks units"], values: Array, rank: Array
    ) -> tuple[Float[Array, "ranks units"], Normal]:
        """The masked units of a rank and p(y_rank | s, a, y_<rank); all that comes later is still zero."""
        offset, direct = read
        hidden = hidden.at[rank].set(jax.nn.silu(offset[rank] + self.enter[rank] @ values))
        mean, spread = (
            direct[row] + (self.leave[row] * hidden).sum() + self.skip[row] @ values
            for row in (rank, len(values) + rank)
        )
        return hidden, Normal(mean, self.scale(spread))

    def scale(self, spread: Float[Array, "*values"]) -> Float[Array, "*values"]:
        return jax.nn.softplus(spread) + self.floor


class AutoRegressiveWorld(TransitionWorld):
    """Members mixed with learnt weights, exactly like the branches of a branching model.

    All members condition on the same sampled values y_<j.
    """

    members: Member  # stacked
    weight_root: Float[Array, " members"]
    observation: Scaler
    reward: Scaler
    action: Scaler
    change: Scaler
    emission: EmissionKind = eqx.field(static=True)
    member_weight: float = eqx.field(static=True)  # of the members' own likelihood beside the mixture's
    n_actions: int | None = eqx.field(static=True)
    terminates: bool = eqx.field(static=True)
    imagination: Imagination = eqx.field(static=True)

    @property
    def weight(self) -> Float[Array, " members"]:
        return branch_weights(self.weight_root)

    def mix(self, prediction: Prediction) -> Prediction:
        termination = prediction.termination
        return Prediction(
            prediction.values.mix(self.weight), None if termination is None else termination.mix(self.weight)
        )

    def objective(self, window: Window) -> dict[str, Float[Array, ""]]:
        """Log-likelihoods of a window of one step; the sum is to be maximised."""
        inputs, target = self.read(window)
        axes = (eqx.if_array(0), None, None)
        members = eqx.filter_vmap(Member.__call__, in_axes=axes)(self.members, inputs, target.values)
        mixed = self.mix(members)
        own = jax.vmap(Prediction.termination_log_prob, in_axes=(0, None))(members, target)
        return {
            "mixture": mixed.log_likelihood(target),
            "members": self.member_weight * members.log_likelihood(target).mean(),
            "termination": mixed.termination_log_prob(target) + self.member_weight * own.mean(),
        }

    def draw_noise(self, key: PRNGKeyArray) -> Float[Array, " values"]:
        return self.draw_values(key)

    def reset(self, observation: Float[Array, " obs"], noise: Array) -> Float[Array, " obs"]:
        return self.observation.apply(observation)

    def step(
        self, state: Float[Array, " obs"], action: Array, noise: Float[Array, " values"]
    ) -> tuple[Float[Array, " obs"], Outcome]:
        inputs = self.inputs(state, action)
        members, over = self.members, (eqx.if_array(0), 0, 0, None, None)
        read = eqx.filter_vmap(Member.read, in_axes=(eqx.if_array(0), None))(members, inputs)

        def draw(rank: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            hidden, values = carry
            advance = eqx.filter_vmap(Member.advance, in_axes=over)
            hidden, predicted = advance(members, read, hidden, values, rank)
            drawn = values.at[rank].set(predicted.mix(self.weight).sample(noise[rank]))
            return hidden, self._within(state, drawn, rank)

        start = jnp.zeros_like(read[0]), jnp.zeros_like(noise)
        _, values = jax.lax.fori_loop(0, len(noise), draw, start)
        complete = eqx.filter_vmap(Member.__call__, in_axes=(eqx.if_array(0), None, None))
        return self.move(state, values, self.mix(complete(members, inputs, values)).termination)

    def _within(
        self, state: Float[Array, " obs"], values: Float[Array, " values"], rank: Array
    ) -> Float[Array, " values"]:
        """Clip the newest value, since later ones are conditioned on it."""
        if self.imagination.clip_margin is None:
            return values
        after = self.decode_state(state, values[:-1])
        within = jnp.concatenate([self.encode_state(state, after), self.clip(self.reward, values[-1:])])
        return values.at[rank].set(within[rank])
