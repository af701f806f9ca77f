"""The variational power method: visits of a policy as the distribution that its own steps leave unchanged."""

from __future__ import annotations

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from vlbm.errors import InputError
from vlbm.estimators.density_ratio import DensityRatio
from vlbm.estimators.ratio_networks import (
    Network,
    apply_last_layer,
    begin_features,
    follow,
    logged_features,
    make_networks,
    policy_features,
)
from vlbm.estimators.transitions import Batch, Problem, Transitions
from vlbm.nn.training import LossOutput

POWER_STEPS = 500
RIDGE = 1e-4  # of the mean square of the features
LARGEST = 30_000_000  # features of logged steps: where they would be more, fewer steps are seen


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

    @property
    def method(self) -> str:
        return "vpm"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.self_normalised:
            raise InputError("setting self_normalised=false: vpm knows ratios up to a factor; leave it out")

    @property
    def loss(self) -> PowerLoss:
        return PowerLoss(self.averaging)

    def make_model(self, problem: Problem, data: Transitions, key: PRNGKeyArray) -> Ratios:
        networks = make_networks(
            data,
            self.units,
            layer_norm=self.layer_norm,
            discrete=problem.episodes.discrete,
            positive=True,
            start=1.0,
            key=key,
        )
        return Ratios(networks, networks)

    def weigh(self, model: Ratios, data: Transitions, policy: int) -> Float[np.ndarray, " steps"]:
        network: Network = jax.tree.map(lambda leaf: leaf[policy], model.average)
        number = jnp.int32(policy)
        size = len(jax.eval_shape(network.features, data.observation[0], data.action[0]))
        some = np.arange(data.steps)[:: -(-data.steps * size // LARGEST)]
        theta = take_power_steps(
            logged_features(network, data, jnp.asarray(some)),
            policy_features(network, data, number, data.before[some] + 1),
            jnp.asarray(begin_features(network, data, number), jnp.float32),
            data.continuation[some],
        )
        ratio = np.maximum(apply_last_layer(network, data, np.asarray(theta)), 0.0)
        return ratio / max(float(ratio[some].mean()), 1e-12)

    def mean_ratio(self, problem: Problem, ratio: Float[np.ndarray, "policies steps"]) -> np.ndarray:
        """The plain mean: visits and logged steps are both distributions."""
        return ratio.mean(axis=1)


class Ratios(eqx.Module):
    """Networks stacked by policy, and the running average that power steps start from."""

    online: Network
    average: Network


def power_loss(
    ratio: Array, led: Array, begun: Array, before: Array, continuation: Array
) -> Float[Array, ""]:
    """Smallest where the ratio of logged steps is one power step from the one before.

    `led` and `begun` are the ratio where logged steps lead and where episodes begin.
    """
    weight = before / jnp.maximum(before.mean(), 1e-6)
    went_on = (weight * continuation * led).mean()
    began_anew = (weight * (1 - continuation)).mean() * begun.mean()
    return (ratio**2).mean() / 2 - went_on - began_anew


@eqx.filter_jit
def take_power_steps(
    phi: Float[Array, "steps features"],
    next_phi: Float[Array, "steps features"],
    begin_phi: Float[Array, " features"],
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
        led = (continuation * ratio) @ next_phi / steps + ((1 - continuation) * ratio).mean() * begin_phi
        return (theta + jax.scipy.linalg.cho_solve(factor, led)) / 2

    # The least squares of 1: all ratios begin there.
    return jax.lax.fori_loop(0, POWER_STEPS, step, jax.scipy.linalg.cho_solve(factor, phi.mean(axis=0)))


@dataclass(frozen=True)
class PowerLoss:
    """The least squares of one power step, for every policy on a batch."""

    averaging: float

    def __call__(self, ratios: Ratios, batch: Batch, key: PRNGKeyArray) -> LossOutput:
        average = jax.lax.stop_gradient(ratios.average)

        def of_policy(online: Network, average: Network, next_a: Array, initial_a: Array) -> Array:
            tau = jax.vmap(online)
            return power_loss(
                ratio=tau(batch.s, batch.a),
                led=tau(batch.next_s, next_a),
                begun=tau(batch.initial_s, initial_a),
                before=jax.vmap(average)(batch.s, batch.a),
                continuation=batch.continuation,
            )

        networks = (eqx.if_array(0), eqx.if_array(0))
        losses = eqx.filter_vmap(of_policy, in_axes=(*networks, 1, 1))(
            ratios.online, average, batch.next_a, batch.initial_a
        )
        # A sum: every policy has its own gradient, whatever the others do.
        moved = Ratios(ratios.online, follow(average, ratios.online, self.averaging))
        return LossOutput(losses.sum(), {"loss": losses.mean()}, moved)
