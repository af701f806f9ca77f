"""The one least-squares solve: how much every logged step counts in a value that is linear in features."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from vlbm.estimators.networks import apply_last_layer, initial_features, logged_features, policy_features
from vlbm.estimators.transitions import Transitions, split_rows

WORK = 4e9  # of all products of features: where these would be more, fewer steps make the equations
RIDGE = 1e-5  # of the mean square of the features: a larger one would decide what slow changes weigh


def influence_weights(networks: Any, data: Transitions) -> Float[np.ndarray, "policies steps"]:
    """How much a policy's value grows with the Bellman residual of every logged step (LSTD's influence).

    With features phi a value is nu . theta, where theta solves A theta = mean of phi(s, a) r, with
    A = mean of phi(s, a) (phi(s, a) - continuation * phi(s', pi))^T and nu = mean of phi(s_0, pi). So a
    residual counts phi(s, a) . x with A^T x = nu: what features take for the ratio of the policy's visits to
    logged ones. It is large where the policy goes often and the log seldom. `networks`, stacked by policy,
    have `features`.
    """
    return np.stack(
        [
            _weigh(jax.tree.map(lambda leaf, at=policy: leaf[at], networks), data, policy)
            for policy in range(data.policies)
        ]
    )


def _weigh(network: Any, data: Transitions, number: int) -> Float[np.ndarray, " steps"]:
    policy = jnp.int32(number)  # an argument of compiled programs, which serve all policies
    size = len(jax.eval_shape(network.features, data.observation[0], data.action[0]))
    most = max(int(WORK / size**2), 20 * size)
    probe = np.arange(data.steps)[:: -(-data.steps // most)]
    matrix, squares = np.zeros((size, size)), 0.0
    for part, count in split_rows(probe):
        product, square = _sum_products(network, data, policy, part, jnp.int32(count))
        # In double precision: what a slow change weighs is the inverse of a small difference.
        matrix += np.asarray(product, np.float64) / len(probe)
        squares += float(square) / len(probe) / size
    ridge = RIDGE * max(squares, 1e-12) * np.eye(size)
    x = np.linalg.solve(matrix.T + ridge, initial_features(network, data, policy))
    return apply_last_layer(network, data, x)


@eqx.filter_jit
def _sum_products(
    network: Any, data: Transitions, policy: Array, step: Array, count: Array
) -> tuple[Array, Array]:
    """The sums of phi (phi - continuation * phi')^T and of phi . phi over the first `count` steps."""
    counted = (jnp.arange(len(step)) < count)[:, None]
    phi = logged_features(network, data, step) * counted
    next_phi = policy_features(network, data, policy, data.before[step] + 1) * counted
    return phi.T @ (phi - data.continuation[step][:, None] * next_phi), (phi**2).sum()
