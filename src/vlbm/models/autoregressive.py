"""An auto-regressive ensemble: each column is predicted from those before it, all by one masked network."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from vlbm.devices import selected
from vlbm.distributions import Bernoulli, Normal
from vlbm.models.base import Imagination, Outcome
from vlbm.models.branching import WEIGHT_EPSILON
from vlbm.models.latent import Emission
from vlbm.models.transition import Likelihood, Sizes, TransitionModel, likelihood
from vlbm.networks import MLP, Linear
from vlbm.scaling import Scaler
from vlbm.windows import Window


class MaskedLinear(eqx.Module):
    """x W on the last axis, where an input reaches only outputs whose rank is not below its own."""

    weight: Float[Array, "inputs outputs"]
    inputs: tuple[int, ...] = eqx.field(static=True)  # ranks
    outputs: tuple[int, ...] = eqx.field(static=True)

    def __init__(self, inputs: tuple[int, ...], outputs: tuple[int, ...], *, random: np.random.Generator):
        self.weight = Linear(len(inputs), len(outputs), random=random).weight
        self.inputs, self.outputs = inputs, outputs

    @property
    def mask(self) -> Bool[np.ndarray, "inputs outputs"]:
        return np.array(self.inputs)[:, None] <= np.array(self.outputs)

    @property
    def masked(self) -> Float[Array, "inputs outputs"]:
        return jnp.where(self.mask, self.weight, 0.0)


class Pieces(NamedTuple):
    """What is added when a value becomes known, value by value (the leading axis), for every member."""

    offset: Float[Array, "values member batch units"]
    enter: Float[Array, "values member values units"]
    leave: Float[Array, "values member units outputs"]
    skip: Float[Array, "values member outputs"]


class MaskedNetwork(eqx.Module):
    """One member: p(y_j | s, a, y_<j), where y are the changes of s and then the reward; last the ending.

    Ranks make it auto-regressive: y_j has rank j + 1, what predicts y_j has rank j, and nothing is
    connected downwards. What only depends on (s, a), most of the work, is not masked at all. The
    masked units of rank j are the only ones that have to be computed once y_<j is known, so that
    drawing all values one by one costs no more products than one pass.
    """

    trunk: MLP
    offset: Linear  # features to masked units
    direct: Linear  # features to outputs: means, spreads, and the ending's log-odds
    enter: MaskedLinear  # values to masked units
    leave: MaskedLinear  # masked units to outputs
    skip: MaskedLinear  # values to outputs
    values: int = eqx.field(static=True)
    ends: bool = eqx.field(static=True)
    scale_floor: float = eqx.field(static=True)

    def __init__(
        self,
        sizes: Sizes,
        *,
        units: tuple[int, ...],
        masked_units: int,
        scale_floor: float,
        random: np.random.Generator,
    ):
        self.values, self.ends = sizes.observations + 1, sizes.end_rate > 0
        self.scale_floor = scale_floor
        ranks = tuple(range(self.values))
        outputs = (*ranks, *ranks, *((self.values,) if self.ends else ()))
        steps = (*ranks, self.values) if self.ends else ranks
        hidden = tuple(rank for rank in steps for _ in range(masked_units))
        known = tuple(rank + 1 for rank in ranks)
        self.trunk = MLP((sizes.observations + sizes.actions, *units), normalisation="none", random=random)
        self.offset = Linear(units[-1], len(hidden), random=random)
        direct = Linear(units[-1], len(outputs), random=random)
        bias = np.zeros(len(outputs), np.float32)
        if self.ends:
            bias[-1] = np.log(sizes.end_rate) - np.log1p(-sizes.end_rate)
        self.direct = eqx.tree_at(lambda layer: layer.bias, direct, jnp.asarray(bias))
        self.enter = MaskedLinear(known, hidden, random=random)
        self.leave = MaskedLinear(hidden, outputs, random=random)
        self.skip = MaskedLinear(known, outputs, random=random)

    def __call__(
        self, inputs: Float[Array, "*batch obs+act"], values: Float[Array, "*batch values"]
    ) -> Float[Array, "*batch outputs"]:
        """All conditionals at once, for values that are known."""
        features = self.trunk(inputs)
        hidden = jax.nn.relu(self.offset(features) + values @ self.enter.masked)
        return self.direct(features) + hidden @ self.leave.masked + values @ self.skip.masked

    def begin(self, inputs: Float[Array, "batch obs+act"]) -> tuple[Array, Pieces]:
        """The outputs as far as (s, a) decide them, and what is to be added value by value."""
        features = self.trunk(inputs)
        units = len(self.enter.outputs) // (self.values + self.ends)
        offset = self.offset(features)
        by_rank = Pieces(
            offset=jnp.moveaxis(offset.reshape(len(offset), -1, units), 1, 0),
            enter=jnp.moveaxis(self.enter.masked.reshape(self.values, -1, units), 1, 0),
            leave=self.leave.masked.reshape(-1, units, len(self.leave.outputs)),
            skip=self.skip.masked,
        )
        return self.direct(features), by_rank

    def emission(self, outputs: Float[Array, "*batch outputs"]) -> Emission:
        mean, scale = outputs[..., : self.values], self.scale(outputs[..., self.values : 2 * self.values])
        return Emission(
            observation=Normal(mean[..., :-1], scale[..., :-1]),
            reward=Normal(mean[..., -1], scale[..., -1]),
            ending=Bernoulli(outputs[..., -1]) if self.ends else None,
        )

    def scale(self, spread: Array) -> Array:
        return jax.nn.softplus(spread) + self.scale_floor


class AutoRegressiveModel(TransitionModel):
    """Members mixed with learnt weights, exactly like the branches of a branching model.

    They agree on every value before the next one is predicted: all condition on the same y_<j.
    """

    network: MaskedNetwork  # stacked: one for every member
    weight_root: Float[Array, " member"]
    observation: Scaler
    reward: Scaler
    action: Scaler
    change: Scaler
    choices: int | None = eqx.field(static=True)
    imagination: Imagination = eqx.field(static=True)

    @property
    def weight(self) -> Float[Array, " member"]:
        squared = self.weight_root**2
        return squared / (WEIGHT_EPSILON + squared.sum())

    @property
    def members(self) -> int:
        return self.weight_root.shape[0]

    def emit(self, inputs: Float[Array, "*batch obs+act"], values: Float[Array, "*batch values"]) -> Emission:
        """Every member's conditionals, [member, *batch, ...], given the true values before each."""
        axes = (eqx.if_array(0), None, None)
        return self.network.emission(
            eqx.filter_vmap(MaskedNetwork.__call__, in_axes=axes)(self.network, inputs, values)
        )

    def log_likelihood(self, window: Window) -> tuple[Likelihood, Likelihood]:
        """Log-likelihood per valid step: of the members, each alone, and of their consensus."""
        inputs, target = self.read(window)
        emission = self.emit(inputs, jnp.concatenate([target.change, target.reward[..., None]], axis=-1))
        return (
            likelihood(emission, target, window.valid),
            likelihood(emission.mixed(self.weight), target, window.valid),
        )

    def begin(self, observation: Float[Array, "*batch obs"], *, key: PRNGKeyArray) -> Array:
        return self.observation.apply(observation)

    def luck(self, count: int, *, key: PRNGKeyArray) -> Float[Array, "episodes values"]:
        return self.noise(key, (count, self.network.values))

    def step(self, state: Array, action: Array, *, luck: Array) -> tuple[Array, Outcome]:
        batch, values = state.shape[:-1], self.network.values
        noise = jnp.broadcast_to(luck, (*batch, values))
        inputs = self.inputs(state, action)
        drawn, ending = self.draw(
            inputs.reshape(-1, inputs.shape[-1]),
            noise.reshape(-1, values),
            self._bounds(state.reshape(-1, state.shape[-1])),
        )
        drawn = drawn.reshape(*batch, values)
        after, reward = self.moved(state, drawn[..., :-1], drawn[..., -1])
        return after, self.outcome(after, reward, None if ending is None else ending.reshape(batch))

    def draw(
        self,
        inputs: Float[Array, "batch obs+act"],
        noise: Float[Array, "batch values"],
        bounds: tuple[Array, Array] | None = None,
    ) -> tuple[Float[Array, "batch values"], Float[Array, " batch"] | None]:
        """Values one after the other, and the probability of ending after them.

        The networks' first part runs once, before the values. Each new value then adds to the outputs
        of all later ones what it and the few masked units of its rank contribute; nothing that was
        added before is computed again.
        """
        axes = (eqx.if_array(0), None)
        outputs, pieces = eqx.filter_vmap(MaskedNetwork.begin, in_axes=axes)(self.network, inputs)
        ranked = Pieces(*(jnp.moveaxis(piece, 1, 0) for piece in pieces))
        values = self.network.values
        low, high = (None, None) if bounds is None else (bound.T for bound in bounds)

        def moved(outputs: Array, known: Array, piece: Pieces) -> Array:
            hidden = jax.nn.relu(piece.offset + jnp.einsum("nk,mku->mnu", known, piece.enter))
            return outputs + jnp.einsum("mnu,muo->mno", hidden, piece.leave)

        def advance(carry: tuple[Array, Array], given: tuple[Array, Pieces, Array, Any, Any]):
            known, outputs = carry
            rank, piece, luck, low, high = given
            outputs = moved(outputs, known, piece)
            mean, spread = (
                jax.lax.dynamic_index_in_dim(outputs, at, axis=-1, keepdims=False)
                for at in (rank, values + rank)
            )
            value = Normal(mean, self.network.scale(spread)).mixed(self.weight).sample(luck)
            if low is not None:
                value = jnp.clip(value, low, high)
            outputs = outputs + piece.skip[:, None] * value[:, None]
            return (jax.lax.dynamic_update_index_in_dim(known, value, rank, axis=-1), outputs), None

        each = Pieces(*(piece[:values] for piece in ranked))
        given = (jnp.arange(values), each, noise.T, low, high)
        (known, outputs), _ = jax.lax.scan(advance, (jnp.zeros_like(noise), outputs), given)
        if not self.network.ends:
            return known, None
        last = Pieces(*(piece[-1] for piece in ranked))
        return known, Bernoulli(moved(outputs, known, last)[..., -1]).mixed(self.weight).probability

    def pruned(self, threshold: float = 1e-5) -> AutoRegressiveModel:
        """The same model without the members that weigh nothing."""
        keep = np.flatnonzero(np.asarray(self.weight) >= threshold)
        if len(keep) == self.members:
            return self
        network, weight_root = selected((self.network, self.weight_root), keep)
        return replace(self, network=network, weight_root=weight_root)

    def _bounds(self, state: Float[Array, "batch obs"]) -> tuple[Array, Array] | None:
        """Between which values observations and rewards stay in the logged range.

        Values are clipped as they are drawn, so that later ones are predicted from what is shown.
        """
        margin = self.imagination.clip_margin
        if margin is None:
            return None

        def bound(extreme: float) -> Array:
            observation = self.observation.clip(jnp.full_like(state, extreme), margin)
            reward = self.reward.clip(jnp.full_like(state[:, :1], extreme), margin)
            return jnp.concatenate([self.change.apply(observation - state), reward], axis=-1)

        return bound(-jnp.inf), bound(jnp.inf)
