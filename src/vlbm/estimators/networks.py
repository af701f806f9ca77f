"""Networks f(s, a), one for every policy: how they are made, and what they say of logged transitions."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from vlbm.estimators.transitions import Transitions, split_rows
from vlbm.nn.layers import MLP, LayerKind

LARGEST = 1000  # features where every discrete action has its own: they are unknowns of linear equations


class Network(eqx.Module):
    """f(s, a), through softplus if it is positive; discrete actions have an output each, weighted by a."""

    mlp: MLP
    discrete: bool = eqx.field(static=True)
    positive: bool = eqx.field(static=True)

    @classmethod
    def make(
        cls,
        data: Transitions,
        units: tuple[int, ...],
        *,
        layer_norm: bool,
        positive: bool = False,
        start: float | None = None,
        key: PRNGKeyArray,
    ) -> Network:
        """An untrained network; with a `start` it has this value everywhere."""
        inputs, actions = data.observation.shape[1], data.action.shape[1]
        sizes = (inputs, *units, actions) if data.discrete else (inputs + actions, *units, 1)
        mlp = MLP(sizes, LayerKind("relu", "layer" if layer_norm else "none"), key=key)
        if start is not None:
            bias = jnp.full(sizes[-1], np.log(np.expm1(start)) if positive else start)
            mlp = eqx.tree_at(lambda mlp: (mlp.last.weight, mlp.last.bias), mlp, (0 * mlp.last.weight, bias))
        return cls(mlp, data.discrete, positive)

    def outputs(self, s: Float[Array, " inputs"], a: Float[Array, " act"]) -> Float[Array, " outputs"]:
        """f of every discrete action, or of the action vector alone."""
        output = self.mlp(s if self.discrete else jnp.concatenate([s, a]))[0]
        return soften(output) if self.positive else output

    def __call__(self, s: Float[Array, " inputs"], a: Float[Array, " act"]) -> Float[Array, ""]:
        output = self.outputs(s, a)
        return output @ a if self.discrete else output[0]

    def features(self, s: Float[Array, " inputs"], a: Float[Array, " act"]) -> Float[Array, " features"]:
        """What f is linear in: the last hidden layer and a one, for each discrete action its own.

        Where these would be more than `LARGEST`, discrete actions only shift the value.
        """
        x = s if self.discrete else jnp.concatenate([s, a])
        for layer in self.mlp.layers:
            x, _ = layer(x)
        x = jnp.append(x, 1.0)
        if not self.discrete:
            return x
        return jnp.outer(a, x).ravel() if len(a) * len(x) <= LARGEST else jnp.concatenate([x, a])


def soften(x: Array) -> Array:
    """Softplus, spelt out: jax.nn's cannot be traced by two threads at once."""
    return jnp.maximum(x, 0) + jnp.log1p(jnp.exp(-jnp.abs(x)))


def repeat(network: Any, policies: int) -> Any:
    """The same network for every policy: what becomes of one does not depend on the others."""
    return jax.tree.map(lambda leaf: jnp.repeat(leaf[None], policies, axis=0), network)


def follow(average: Any, networks: Any, rate: float) -> Any:
    """The running average of networks, moved towards them."""
    return jax.tree.map(lambda old, new: old + rate * (new - old), average, networks)


@eqx.filter_jit
def logged_features(network: Any, data: Transitions, step: Array) -> Float[Array, "steps features"]:
    """Features of one policy's network for logged actions."""
    return jax.vmap(network.features)(data.observation[data.before[step]], data.action[step])


@eqx.filter_jit
def policy_features(
    network: Any, data: Transitions, policy: Array, row: Array
) -> Float[Array, "rows features"]:
    """The same for what the policy does at some rows, averaged over its draws."""
    drawn = data.policy_action[:, row, policy]
    return jax.vmap(lambda a: jax.vmap(network.features)(data.observation[row], a))(drawn).mean(axis=0)


def initial_features(network: Any, data: Transitions, policy: Array) -> Float[np.ndarray, " features"]:
    """The mean of the policy's features where episodes begin."""
    parts = [
        np.asarray(policy_features(network, data, policy, part), np.float64)[:count]
        for part, count in split_rows(np.asarray(data.initial))
    ]
    return np.concatenate(parts).mean(axis=0)


def apply_last_layer(
    network: Any, data: Transitions, theta: Float[np.ndarray, " features"]
) -> Float[np.ndarray, " steps"]:
    """phi(s, a) . theta of all logged steps."""
    factor = jnp.asarray(theta, jnp.float32)
    parts = [
        np.asarray(logged_features(network, data, part) @ factor, np.float64)[:count]
        for part, count in split_rows(np.arange(data.steps))
    ]
    return np.concatenate(parts)
