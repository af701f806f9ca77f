"""The variational power method: visits of a policy as the distribution that its own steps leave unchanged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from vlbm.errors import InputError
from vlbm.estimators.density_ratio import DensityRatio
from vlbm.estimators.networks import (
    Network,
    apply_last_layer,
    follow,
    initial_features,
    logged_features,
    policy_features,
    repeat,
)
from vlbm.estimators.transitions import Batch, Problem, Transitions
from vlbm.nn.training import LossOutput

POWER_STEPS = 500
RIDGE = 1e-4  # of the mean square of the features
LARGEST = 30_000_000  # features of logged steps: where they would be more, fewer steps are used


@dataclass(frozen=True)
class VPM(DensityRatio):
    """The variational power method (Wen et al., 2020).

    A policy that begins anew wherever an episode ends, and with probability 1 - discount after any other
    step, leaves its discounted visits unchanged: they are the stationary distribution of that chain, and
    repeating a step of it from any other leads there. A step turns the ratio of visits to logged steps into
    the next, which is fitted to logged steps by least squares,

        mean of ratio^2 / 2 on logged steps - mean of ratio where the steps weighted so far lead,

    and no density has to be known. The paper fits a step by a game between two networks; the squared form
    needs one. Descent shapes the hidden layers, with steps weighted by a running average of the ratio; for
    the last layer a power step is a least-squares fit that is solved, and many of them follow (descent alone
    said -6.54, -9.36 and -17.49 of the cliff walk after 3,000 steps, where -6.34, -9.08 and -17.52 are exact;
    solved for, they are worth -6.34, -9.09 and -17.52). The value is what is earned over what ends.

    Endings, horizons, intervals and warnings are as in `DICE`.
    """

    method: ClassVar[str] = "vpm"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.self_normalised:
            raise InputError("setting self_normalised=false: vpm knows ratios up to a factor; leave it out")

    def make_model(self, problem: Problem, data: Transitions, key: PRNGKeyArray) -> Ratios:
        network = Network.make(
            data, self.units, layer_norm=self.layer_norm, positive=True, start=1.0, key=key
        )
        tau = repeat(network, data.policies)
        return Ratios(tau, tau)

    def loss(self, model: Ratios, batch: Batch, key: PRNGKeyArray) -> LossOutput:
        """The least squares of one power step, for every policy on a batch."""
        average = jax.lax.stop_gradient(model.average)

        def of_policy(tau: Network, average: Network, next_a: Array, initial_a: Array) -> Array:
            ratio = jax.vmap(tau)
            return power_loss(
                ratio=ratio(batch.s, batch.a),
                next_ratio=ratio(batch.next_s, next_a),
                initial_ratio=ratio(batch.initial_s, initial_a),
                before=jax.vmap(average)(batch.s, batch.a),
                continuation=batch.continuation,
            )

        of_each = eqx.filter_vmap(of_policy, in_axes=(eqx.if_array(0), eqx.if_array(0), 1, 1))
        losses = of_each(model.tau, average, batch.next_a, batch.initial_a)
        # A sum: every policy has its own gradient, whatever the others do.
        moved = Ratios(model.tau, follow(average, model.tau, self.averaging))
        return LossOutput(losses.sum(), {"loss": losses.mean()}, moved)

    def solve(self, model: Ratios, data: Transitions, policy: int) -> Float[np.ndarray, " steps"]:
        network: Network = jax.tree.map(lambda leaf: leaf[policy], model.average)
        number = jnp.int32(policy)  # an argument of compiled programs, which serve all policies
        size = len(jax.eval_shape(network.features, data.observation[0], data.action[0]))
        some = np.arange(data.steps)[:: -(-data.steps * size // LARGEST)]
        theta = take_power_steps(
            logged_features(network, data, jnp.asarray(some)),
            policy_features(network, data, number, data.before[some] + 1),
            jnp.asarray(initial_features(network, data, number), jnp.float32),
            data.continuation[some],
        )
        ratio = np.maximum(apply_last_layer(network, data, np.asarray(theta)), 0.0)
        return ratio / max(float(ratio[some].mean()), 1e-12)

    def mean_ratio(self, problem: Problem, ratio: Float[np.ndarray, "policies steps"]) -> np.ndarray:
        """The plain mean: visits and logged steps are both distributions."""
        return ratio.mean(axis=1)


class Ratios(eqx.Module):
    """Networks tau stacked by policy, and the running average that power steps start from."""

    tau: Network
    average: Network


def power_loss(
    *, ratio: Array, next_ratio: Array, initial_ratio: Array, before: Array, continuation: Array
) -> Float[Array, ""]:
    """Smallest where the ratio of logged steps is one power step from `before`, the ratio so far.

    `next_ratio` and `initial_ratio` are the ratio where logged steps lead and where episodes begin.
    """
    weight = before / jnp.maximum(before.mean(), 1e-6)
    goes_on = (weight * continuation * next_ratio).mean()
    begins_anew = (weight * (1 - continuation)).mean() * initial_ratio.mean()
    return (ratio**2).mean() / 2 - goes_on - begins_anew


@eqx.filter_jit
def take_power_steps(
    phi: Float[Array, "steps features"],
    next_phi: Float[Array, "steps features"],
    initial_phi: Float[Array, " features"],
    continuation: Float[Array, " steps"],
) -> Float[Array, " features"]:
    """The last layer after many power steps, each half of the way: theta of the ratio max(phi . theta, 0).

    With fixed features the loss of a power step is least squares, and is solved.
    """
    steps, features = phi.shape
    square = phi.T @ phi / steps
    factor = jax.scipy.linalg.cho_factor(square + RIDGE * jnp.trace(square) / features * jnp.eye(features))

    def step(_: Array, theta: Array) -> Array:
        ratio = jnp.maximum(phi @ theta, 0)
        ratio = ratio / jnp.maximum(ratio.mean(), 1e-6)
        goes_on = (continuation * ratio) @ next_phi / steps
        begins_anew = ((1 - continuation) * ratio).mean() * initial_phi
        return (theta + jax.scipy.linalg.cho_solve(factor, goes_on + begins_anew)) / 2

    # The least squares of 1: all ratios begin there.
    return jax.lax.fori_loop(0, POWER_STEPS, step, jax.scipy.linalg.cho_solve(factor, phi.mean(axis=0)))
