"""Networks of density ratios and values, and the features that their last layers are linear in."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from vlbm.estimators.transitions import Transitions, split_rows
from vlbm.nn.layers import MLP, LayerKind

LARGEST = 1000  # unknowns of linear equations where every discrete action has its own


class Network(eqx.Module):
    """f(s, a), through softplus if it is positive; discrete actions have an output each, weighted by a."""

    mlp: MLP
    discrete: bool = eqx.field(static=True)
    positive: bool = eqx.field(static=True)

    def __call__(self, s: Float[Array, " inputs"], a: Float[Array, " act"]) -> Float[Array, ""]:
        output = self.mlp(s if self.discrete else jnp.concatenate([s, a]))[0]
        output = soften(output) if self.positive else output
        return output @ a if self.discrete else output[0]

    def features(self, s: Float[Array, " inputs"], a: Float[Array, " act"]) -> Float[Array, " features"]:
        """The last hidden layer and a one; each discrete action has its own."""
        return self.mlp.features(s, a, discrete=self.discrete, most=LARGEST)


def soften(x: Array) -> Array:
    """Softplus, spelt out: jax.nn's cannot be traced by two threads at once."""
    return jnp.maximum(x, 0) + jnp.log1p(jnp.exp(-jnp.abs(x)))


def make_networks(
    data: Transitions,
    units: tuple[int, ...],
    *,
    layer_norm: bool,
    discrete: bool,
    positive: bool = False,
    start: float,
    key: PRNGKeyArray,
) -> Network:
    """The same network for every policy, so that none depends on its company; all start at one number."""
    inputs, actions = data.observation.shape[1], data.action.shape[1]
    sizes = (inputs, *units, actions) if discrete else (inputs + actions, *units, 1)
    mlp = MLP(sizes, LayerKind("relu", "layer" if layer_norm else "none"), key=key)
    bias = jnp.full(sizes[-1], np.log(np.expm1(start)) if positive else start)
    mlp = eqx.tree_at(lambda mlp: (mlp.last.weight, mlp.last.bias), mlp, (0 * mlp.last.weight, bias))
    network = Network(mlp, discrete, positive)
    return jax.tree.map(lambda leaf: jnp.repeat(leaf[None], data.policies, axis=0), network)


def follow(average: Any, networks: Any, rate: float) -> Any:
    """The running average of networks."""
    return jax.tree.map(lambda old, new: old + rate * (new - old), average, networks)


@eqx.filter_jit
def logged_features(network: Network, data: Transitions, step: Array) -> Float[Array, "steps features"]:
    """Features of one policy's network for logged actions."""
    return jax.vmap(network.features)(data.observation[data.before[step]], data.action[step])


@eqx.filter_jit
def policy_features(
    network: Network, data: Transitions, policy: Array, row: Array
) -> Float[Array, "rows features"]:
    """The same for what the policy does at some rows, averaged over its draws."""
    drawn = data.policy_action[:, row, policy]
    return jax.vmap(lambda a: jax.vmap(network.features)(data.observation[row], a))(drawn).mean(axis=0)


def apply_last_layer(
    network: Network, data: Transitions, theta: Float[np.ndarray, " features"]
) -> Float[np.ndarray, " steps"]:
    """What a network with this last layer says of all logged steps."""
    factor = jnp.asarray(theta, jnp.float32)
    parts = [
        np.asarray(logged_features(network, data, part) @ factor, np.float64)[:count]
        for part, count in split_rows(np.arange(data.steps))
    ]
    return np.concatenate(parts)


def begin_features(network: Network, data: Transitions, policy: Array) -> Float[np.ndarray, " features"]:
    """The mean of features where episodes begin."""
    parts = [
        np.asarray(policy_features(network, data, policy, part), np.float64)[:count]
        for part, count in split_rows(np.asarray(data.initial))
    ]
    return np.concatenate(parts).mean(axis=0)
