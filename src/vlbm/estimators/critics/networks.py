"""Q networks of many policies in one stack, and what is asked of a critic."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Shaped

from vlbm.estimators.critics.layers import Identity, LayerNorm, Linear, make_normalisation
from vlbm.estimators.critics.quadratic import LARGEST, Quadratic


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


class Layer(eqx.Module):
    """W x + b of columns, stacked; weights lie as they are multiplied: otherwise products are slower."""

    weight: Float[Array, "*stack outputs inputs"]
    bias: Float[Array, "*stack outputs"]

    @classmethod
    def of(cls, linear: Linear) -> Layer:
        return cls(linear.weight.T, linear.bias)

    def __call__(self, columns: Float[Array, "*stack inputs batch"]) -> Float[Array, "*stack outputs batch"]:
        return self.weight @ columns + self.bias[..., None]


class Critics(eqx.Module):
    """A Q network for every policy, `copies` times: every array has the axes copies and policies first.

    The first layer is kept apart, because all networks see the same observations: their products are
    one product. Discrete actions have a head each; vectors enter the first layer, and a quadratic part
    beside the network where inputs are few enough. The batch is the last axis of all that networks
    compute: sums over units then run along memory, which makes normalised layers three times faster.
    """

    first: Float[Array, "copies policies units inputs+act"]  # action vectors come last
    bias: Float[Array, "copies policies units"]
    layers: tuple[Layer, ...]  # stacked
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
                    first.weight.T,
                    first.bias,
                    tuple(Layer.of(Linear(*size, random=random, gain=2**0.5)) for size in sizes),
                    tuple(make_normalisation("layer" if layer_norm else "none", size) for size in units),
                    # A small head: before training every value is about the average one.
                    Linear(units[-1], actions if discrete else 1, random=random, gain=0.1),
                )
            )
        stacked = jax.tree.map(lambda *leaves: _spread(leaves, policies), *single)
        self.first, self.bias, self.layers, self.norms, self.head = stacked
        few = vectors and observations + vectors <= LARGEST
        self.quadratic = (
            Quadratic(copies=copies, policies=policies, observations=observations, actions=vectors)
            if quadratic and few
            else None
        )

    def __call__(
        self, seen: Seen, action: Float[Array, "batch act"] | Float[Array, "batch policies act"] | None
    ) -> Float[Array, "copies policies outputs batch"]:
        """The outputs of all networks; of discrete actions one output each, otherwise one."""
        hidden = self.hidden(seen, action)
        outputs = _flat(self.head).columns(_flat(hidden)).reshape(*hidden.shape[:2], -1, hidden.shape[-1])
        if self.quadratic is None or action is None:
            return outputs
        return outputs + self.quadratic(seen.plain, action)[:, :, None]

    def hidden(
        self, seen: Seen, action: Float[Array, "batch act"] | Float[Array, "batch policies act"] | None
    ) -> Float[Array, "copies policies units batch"]:
        """The last hidden layer; action vectors are the same for all policies, or each has its own."""
        inputs = jnp.swapaxes(seen.inputs, -1, -2)
        if action is None or action.ndim == 2:
            # The same for all policies: one product.
            acted = [] if action is None else [jnp.broadcast_to(action.T, (len(inputs), *action.T.shape))]
            first = jnp.einsum("cpui,cib->cpub", self.first, jnp.concatenate([inputs, *acted], axis=1))
        else:
            shape = self.first.shape[:2]
            parts = (inputs[:, None], jnp.moveaxis(action, 0, -1)[None])
            own = [jnp.broadcast_to(part, (*shape, *part.shape[2:])) for part in parts]
            first = jnp.einsum("cpui,cpib->cpub", self.first, jnp.concatenate(own, axis=2))
        layers, norms = _flat((self.layers, self.norms))
        hidden = jax.nn.relu(norms[0].columns(_flat(first) + _flat(self.bias)[..., None]))
        for layer, norm in zip(layers, norms[1:], strict=True):
            hidden = jax.nn.relu(norm.columns(layer(hidden)))
        return hidden.reshape(*first.shape[:2], *hidden.shape[1:])

    def regressors(
        self, seen: Seen, action: Float[Array, "batch act"] | Float[Array, "batch policies act"] | None
    ) -> Float[Array, "copies policies regressors batch"]:
        """All that the outputs are linear in: hidden units, products of inputs, and last a one."""
        hidden = self.hidden(seen, action)
        parts = [hidden, jnp.ones_like(hidden[..., :1, :])]
        if self.quadratic is not None and action is not None:
            products = self.quadratic.products(seen.plain, action)
            parts.insert(1, jnp.broadcast_to(products, (*hidden.shape[:2], *products.shape[1:])))
        return jnp.concatenate(parts, axis=-2)

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


def _flat(stack: Any) -> Any:
    """Copies and policies as one axis: an axis of one copy more would slow XLA's loops by half."""
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), stack)
