"""Q networks of many policies in one stack, and what is asked of a critic."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Shaped

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


class Critics(eqx.Module):
    """A Q network for every policy, `copies` times: every array has the axes copies and policies first.

    The first layer is kept apart, because all networks see the same observations: their products are
    one product. Discrete actions have a head each; vectors enter the first layer.
    """

    observed: Float[Array, "copies policies obs units"]
    acted: Float[Array, "copies policies act units"] | None
    bias: Float[Array, "copies policies units"]
    layers: tuple[Linear, ...]  # stacked
    norms: tuple[LayerNorm | Identity, ...]  # stacked
    head: Linear  # stacked

    def __init__(
        self,
        *,
        copies: int,
        policies: int,
        observations: int,
        actions: int,
        discrete: bool,
        units: Sequence[int],
        layer_norm: bool,
        random: np.random.Generator,
    ):
        """Copies differ; policies all start from the same network, so that none depends on its company."""
        vectors = 0 if discrete else actions
        sizes = list(itertools.pairwise(units))
        single = []
        for _ in range(copies):
            first = Linear(observations + vectors, units[0], random=random, gain=2**0.5)
            single.append(
                (
                    first.weight[:observations],
                    None if discrete else first.weight[observations:],
                    first.bias,
                    tuple(Linear(*size, random=random, gain=2**0.5) for size in sizes),
                    tuple(make_normalisation("layer" if layer_norm else "none", size) for size in units),
                    # A small head: before training every value is about the average one.
                    Linear(units[-1], actions if discrete else 1, random=random, gain=0.1),
                )
            )
        stacked = jax.tree.map(lambda *leaves: _spread(leaves, policies), *single)
        self.observed, self.acted, self.bias, self.layers, self.norms, self.head = stacked

    def __call__(
        self,
        observation: Float[Array, "batch obs"],
        action: Float[Array, "batch act"] | Float[Array, "batch policies act"] | None,
    ) -> Float[Array, "copies policies batch outputs"]:
        """The outputs of all networks; of discrete actions one output each, otherwise one."""
        return self.outputs(self.features(observation, action))

    def features(
        self,
        observation: Float[Array, "batch obs"],
        action: Float[Array, "batch act"] | Float[Array, "batch policies act"] | None,
    ) -> Float[Array, "copies policies batch units"]:
        """The last hidden layer; action vectors are the same for all policies, or each has its own."""
        first = jnp.einsum("bi,cpiu->cpbu", observation, self.observed)
        if self.acted is not None and action is not None:
            pattern = "bi,cpiu->cpbu" if action.ndim == 2 else "bpi,cpiu->cpbu"
            first = first + jnp.einsum(pattern, action, self.acted)
        first = first + self.bias[..., None, :]
        return jax.vmap(jax.vmap(_deep))(self.layers, self.norms, first)

    def outputs(
        self, features: Float[Array, "copies policies batch units"]
    ) -> Float[Array, "copies policies batch outputs"]:
        return jax.vmap(jax.vmap(lambda head, features: head(features)))(self.head, features)

    def corrected(self, by: Float[Array, "copies policies units+1 #outputs"]) -> Critics:
        """The same networks with this added to their last layers; the last row goes to the bias."""
        head = self.head
        changed = (head.weight + by[..., :-1, :], head.bias + by[..., -1, :])
        return eqx.tree_at(lambda critics: (critics.head.weight, critics.head.bias), self, changed)

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
