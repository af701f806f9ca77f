"""Q networks of many policies in one stack, and what is asked of a critic."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Shaped

from vlbm.estimators.critics.quadratic import LARGEST, Quadratic
from vlbm.networks import Identity, LayerNorm, Linear, make_normalisation


class Critic(Protocol):
    """What one policy will still earn from a logged observation on; `time` is the step number, from 0."""

    def q(
        self,
        observation: Float[np.ndarray, "batch obs"],
        action: Shaped[np.ndarray, " batch *act"],
        time: Int[np.ndarray, " batch"],
    ) -> Float[np.ndarray, " batch"]:
        """After a given action."""

    def v(
        self, observation: Float[np.ndarray, "batch obs"], time: Int[np.ndarray, " batch"]
    ) -> Float[np.ndarray, " batch"]:
        """When the policy acts."""


class Seen(NamedTuple):
    """Observations as critics take them: as they are, and with the features that copies have of them."""

    plain: Float[Array, "batch obs"]
    inputs: Float[Array, "copies batch inputs"]


class Critics(eqx.Module):
    """A Q network for every policy, `copies` times: every array has the axes copies and policies first.

    The first layer is kept apart, because all networks see the same observations: their products are
    one product. Discrete actions have a head each; vectors enter the first layer, and a quadratic part
    beside the network where inputs are few enough.
    """

    observed: Float[Array, "copies policies inputs units"]
    acted: Float[Array, "copies policies act units"] | None
    bias: Float[Array, "copies policies units"]
    layers: tuple[Linear, ...]  # stacked
    norms: tuple[LayerNorm | Identity, ...]  # stacked
    head: Linear  # stacked
    quadratic: Quadratic | None

    def __init__(
        self,
        *,
        copies: int,
        policies: int,
        observations: int,
        features: int,
        actions: int,
        discrete: bool,
        units: Sequence[int],
        layer_norm: bool,
        quadratic: bool,
        random: np.random.Generator,
    ):
        """Copies differ; policies all start from the same network, so that none depends on its company."""
        vectors = 0 if discrete else actions
        inputs = observations + features
        sizes = list(itertools.pairwise(units))
        single = []
        for _ in range(copies):
            first = Linear(inputs + vectors, units[0], random=random, gain=2**0.5)
            single.append(
                (
                    first.weight[:inputs],
                    None if discrete else first.weight[inputs:],
                    first.bias,
                    tuple(Linear(*size, random=random, gain=2**0.5) for size in sizes),
                    tuple(make_normalisation("layer" if layer_norm else "none", size) for size in units),
                    # A small head: before training every value is about the average one.
                    Linear(units[-1], actions if discrete else 1, random=random, gain=0.1),
                )
            )
        stacked = jax.tree.map(lambda *leaves: _spread(leaves, policies), *single)
        self.observed, self.acted, self.bias, self.layers, self.norms, self.head = stacked
        few = vectors and observations + vectors <= LARGEST
        self.quadratic = (
            Quadratic(copies=copies, policies=policies, inputs=observations + vectors)
            if quadratic and few
            else None
        )

    def __call__(
        self, seen: Seen, action: Float[Array, "batch act"] | Float[Array, "batch policies act"] | None
    ) -> Float[Array, "copies policies batch outputs"]:
        """The outputs of all networks; of discrete actions one output each, otherwise one."""
        hidden = self.hidden(seen, action)
        outputs = jax.vmap(jax.vmap(lambda head, hidden: head(hidden)))(self.head, hidden)
        if self.quadratic is None or action is None:
            return outputs
        return outputs + self.quadratic(seen.plain, action)[..., None]

    def hidden(
        self, seen: Seen, action: Float[Array, "batch act"] | Float[Array, "batch policies act"] | None
    ) -> Float[Array, "copies policies batch units"]:
        """The last hidden layer; action vectors are the same for all policies, or each has its own."""
        first = jnp.einsum("cbi,cpiu->cpbu", seen.inputs, self.observed)
        if self.acted is not None and action is not None:
            pattern = "bi,cpiu->cpbu" if action.ndim == 2 else "bpi,cpiu->cpbu"
            first = first + jnp.einsum(pattern, action, self.acted)
        first = first + self.bias[..., None, :]
        return jax.vmap(jax.vmap(_deep))(self.layers, self.norms, first)

    def regressors(
        self, seen: Seen, action: Float[Array, "batch act"] | Float[Array, "batch policies act"] | None
    ) -> Float[Array, "copies policies batch regressors"]:
        """All that the outputs are linear in: hidden units, products of inputs, and last a one."""
        hidden = self.hidden(seen, action)
        parts = [hidden, jnp.ones_like(hidden[..., :1])]
        if self.quadratic is not None and action is not None:
            products = self.quadratic.products(seen.plain, action)
            parts.insert(1, jnp.broadcast_to(products, (*hidden.shape[:-1], products.shape[-1])))
        return jnp.concatenate(parts, axis=-1)

    @property
    def regressor_count(self) -> int:
        return self.head.weight.shape[-2] + 1 + (0 if self.quadratic is None else self.quadratic.size)

    def corrected(self, by: Float[Array, "copies policies regressors #outputs"]) -> Critics:
        """The same networks with this added to what their regressors are multiplied with."""
        head, units = self.head, self.head.weight.shape[-2]
        moved = eqx.tree_at(
            lambda critics: (critics.head.weight, critics.head.bias),
            self,
            (head.weight + by[..., :units, :], head.bias + by[..., -1, :]),
        )
        if self.quadratic is None:
            return moved
        return eqx.tree_at(
            lambda critics: critics.quadratic, moved, self.quadratic.moved(by[..., units:-1, 0])
        )

    def chosen(self, keep: np.ndarray, other: Critics) -> Critics:
        """These networks where `keep` says so, the others elsewhere."""

        def choose(mine: Array, theirs: Array) -> Array:
            return jnp.where(jnp.asarray(keep).reshape(*keep.shape, *[1] * (mine.ndim - 2)), mine, theirs)

        return jax.tree.map(choose, self, other)


def _spread(leaves: Sequence[Array], policies: int) -> Array:
    stack = np.stack([np.asarray(leaf) for leaf in leaves])[:, None]
    return jnp.asarray(np.repeat(stack, policies, axis=1))


def _deep(
    layers: tuple[Linear, ...],
    norms: tuple[LayerNorm | Identity, ...],
    features: Float[Array, "batch units"],
) -> Float[Array, "batch units"]:
    features = jax.nn.relu(norms[0](features))
    for layer, norm in zip(layers, norms[1:], strict=True):
        features = jax.nn.relu(norm(layer(features)))
    return features
