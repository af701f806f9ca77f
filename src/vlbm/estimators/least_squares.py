"""The one least-squares solve: how much every logged step counts in a value that is linear in features."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from vlbm.estimators.transitions import Transitions, split_rows

WORK = 4e9  # of all products of features: where these would be more, fewer steps make the equations
RIDGE = 1e-5  # of the mean square of the features: a larger one would decide what slow changes weigh

# phi(networks of one policy, s, a), for one step.
Features = Callable[[Any, Array, Array], Float[Array, " features"]]


def influence_weights(
    phi: Features, networks: Any, transitions: Transitions
) -> Float[np.ndarray, "policies steps"]:
    """How much a policy's value grows with the Bellman residual of every logged step (LSTD's influence).

    With features phi a value is nu . theta, where theta solves A theta = mean of phi(s, a) r, with
    A = mean of phi(s, a) (phi(s, a) - continuation * phi(s', pi))^T and nu = mean of phi(s_0, pi). So a
    residual counts phi(s, a) . x with A^T x = nu: what features take for the ratio of the policy's visits to
    logged ones. It is large where the policy goes often and the log seldom.
    """
    return np.stack(
        [
            _weigh(phi, jax.tree.map(lambda leaf, at=policy: leaf[at], networks), transitions, policy)
            for policy in range(transitions.policies)
        ]
    )


def _weigh(phi: Features, network: Any, data: Transitions, number: int) -> Float[np.ndarray, " steps"]:
    policy = jnp.int32(number)  # an argument of compiled programs, which serve all policies
    size = len(jax.eval_shape(phi, network, data.observation[0], data.action[0]))
    most = max(int(WORK / size**2), 20 * size)
    probe = np.arange(data.steps)[:: -(-data.steps // most)]
    matrix, squares = np.zeros((size, size)), 0.0
    for part, count in split_rows(probe):
        product, square = _products(phi, network, data, policy, part, jnp.int32(count))
        # In double precision: what a slow change weighs is the inverse of a small difference.
        matrix += np.asarray(product, np.float64) / len(probe)
        squares += float(square) / len(probe) / size
    begun = np.zeros(size)
    for part, count in split_rows(np.asarray(data.initial)):
        begun += np.asarray(_begin(phi, network, data, policy, part, jnp.int32(count)), np.float64) / len(
            data.initial
        )
    solution = np.linalg.solve(matrix.T + RIDGE * max(squares, 1e-12) * np.eye(size), begun)
    factor = jnp.asarray(solution, jnp.float32)
    parts = [
        np.asarray(_apply(phi, network, data, part, factor), np.float64)[:count]
        for part, count in split_rows(np.arange(data.steps))
    ]
    return np.concatenate(parts)


@eqx.filter_jit
def _products(
    phi: Features, network: Any, data: Transitions, policy: Array, step: Array, count: Array
) -> tuple[Array, Array]:
    row, counted = data.before[step], (jnp.arange(len(step)) < count)[:, None]
    at = jax.vmap(lambda s, a: phi(network, s, a))
    here = at(data.observation[row], data.action[step]) * counted
    there = _at_policy(at, data, policy, row + 1) * counted
    lost = here - data.continuation[step][:, None] * there
    return here.T @ lost, (here**2).sum()


@eqx.filter_jit
def _begin(phi: Features, network: Any, data: Transitions, policy: Array, row: Array, count: Array) -> Array:
    counted = (jnp.arange(len(row)) < count)[:, None]
    at = jax.vmap(lambda s, a: phi(network, s, a))
    return (_at_policy(at, data, policy, row) * counted).sum(axis=0)


def _at_policy(at: Callable, data: Transitions, policy: Array, row: Array) -> Array:
    """Features of what a policy does at some rows, averaged over its draws."""
    drawn = data.policy_action[:, row, policy]
    return jax.vmap(lambda action: at(data.observation[row], action))(drawn).mean(axis=0)


@eqx.filter_jit
def _apply(phi: Features, network: Any, data: Transitions, step: Array, factor: Array) -> Array:
    here = jax.vmap(lambda s, a: phi(network, s, a))(data.observation[data.before[step]], data.action[step])
    return here @ factor
