"""DICE: how much more often than the log a policy does something, as the saddle point of a Lagrangian."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
from vlbm.estimators.transitions import Batch, Problem, Transitions, split_rows
from vlbm.nn.training import LossOutput

RIDGE = 1e-5  # of the mean square of value features: a larger one would decide what slow changes weigh
DUAL_RIDGE = 1e-3  # of the mean square of ratio features, where ratios are regularised anyway
BARE_RIDGE = 1e-4  # where they are not
PASSES = 8  # over the log, for ratios that must be positive


@dataclass(frozen=True)
class DICE(DensityRatio):
    """Distribution corrections by the regularised Lagrangian (Yang et al., 2020), in their best setting.

    A policy is worth the logged rewards, each weighted by the ratio of the policy's discounted visits to
    logged ones. Ratios (zeta) and values (nu) are networks, one ascending and one descending a Lagrangian. As
    in the paper, the setting that did best regularises ratios, keeps rewards, positive ratios and the
    multiplier. `dualdice` (Nachum et al., 2019) and `gendice` (Zhang et al., 2020) are other settings.

    Descent and ascent shape the hidden layers; both last layers are then solved for, by the linear equations
    of the saddle point. Descent alone circles around it: after 6,000 steps of Adam on the chain, whose
    targets are worth 3.11, 3.74 and 4.92, it said 4.55, 4.61 and 18.2 with ratios that averaged 10, 5.8 and
    .03; solved for, they are worth 3.11, 3.79 and 5.02, as by counting. The learning rate is small on
    purpose: values that can be bent where the log shows nothing run away there.

    Without a horizon the task is endless, and the discount must be below 1: an episode that was cut off goes
    on, one that ended earns nothing more. With a horizon that matters, time is one more observation.

    The interval resamples episodes with their ratios held fixed, and holds what linear equations (LSTD) in
    the ratio network's features make of the same log (`lstd_change`). Returns are not estimated, so quantiles
    and lengths are unknown. `details` say how far ratios are from what sound ones must be:
    `mean_ratio` is 1 for these, and `flow_violation` 0. Where a policy is deterministic and actions are
    vectors, no exact ratio exists, and what networks make of it is a guess that `effective_share` tells of.

    Args:
        primal_regulariser: Of values.
        dual_regulariser: Of ratios.
        reward: Whether the Lagrangian has rewards; without, its saddle point has the same ratios.
        positive: Whether ratios must not be negative.
        normalised: A multiplier of its own for how much ends.
        method: What tables call it.
    """

    primal_regulariser: float = 0.0
    dual_regulariser: float = 1.0
    reward: bool = True
    positive: bool = True
    normalised: bool = True
    # What tables call it; the settings known by other names have these.
    method: str = "dice"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("primal_regulariser", "dual_regulariser"):
            if getattr(self, name) < 0:
                raise InputError(f"setting {name}={getattr(self, name)}: must not be negative")
        if not (self.primal_regulariser or self.dual_regulariser):
            raise InputError(
                "setting dual_regulariser=0: and without primal_regulariser there is no saddle point; "
                "make one of them positive"
            )
        if self.primal_regulariser and self.reward:
            raise InputError(
                "setting reward=true: together with primal_regulariser the ratios would be biased; set one "
                "of them off"
            )

    def make_model(self, problem: Problem, data: Transitions, key: PRNGKeyArray) -> Saddle:
        """Untrained: zeta is 1 everywhere."""
        nu_key, zeta_key = jax.random.split(key)
        options: Any = {"units": self.units, "layer_norm": self.layer_norm}
        nu = Network.make(data, **options, start=0.0, key=nu_key)
        zeta = Network.make(data, **options, positive=self.positive, start=1.0, key=zeta_key)
        nu, zeta = repeat((nu, zeta), data.policies)
        reward, steps = problem.reward.astype(float), 1 / problem.end_rate
        spread = float(reward.std()) or 1.0
        # Where zeta is 1, nu solves the Bellman equation for rewards less what zeta costs.
        mean = float(reward.mean()) / spread if self.reward else 0.0
        offset, unit = (mean - self.dual_regulariser) * steps, steps
        if self.primal_regulariser:
            offset, unit = 0.0, 1.0
        scales = (jnp.float32(part) for part in (offset, unit, spread, problem.end_rate))
        return Saddle(nu, zeta, jnp.zeros(data.policies), zeta, *scales)

    def loss(self, model: Saddle, batch: Batch, key: PRNGKeyArray) -> LossOutput:
        """The Lagrangian of every policy on a batch, to descend in nu and lambda and to ascend in zeta."""
        offset, unit, spread, end_rate = jax.lax.stop_gradient(
            (model.offset, model.unit, model.spread, model.end_rate)
        )

        def of_policy(nu: Network, zeta: Network, lam: Array, next_a: Array, initial_a: Array) -> Array:
            def value(s: Array, a: Array) -> Array:
                return offset + unit * jax.vmap(nu)(s, a)

            initial = initial_term(self, value(batch.initial_s, initial_a), lam, end_rate)
            step = step_term(
                self,
                jax.vmap(reverse_gradient(zeta))(batch.s, batch.a),
                value(batch.s, batch.a),
                value(batch.next_s, next_a),
                lam,
                reward=batch.reward / spread,
                continuation=batch.continuation,
                end_rate=end_rate,
            )
            return initial.mean() + step.mean()

        of_each = eqx.filter_vmap(of_policy, in_axes=(eqx.if_array(0), eqx.if_array(0), 0, 1, 1))
        losses = of_each(model.nu, model.zeta, model.lam, batch.next_a, batch.initial_a)
        average = follow(jax.lax.stop_gradient(model.average), model.zeta, self.averaging)
        moved = eqx.tree_at(lambda model: model.average, model, average)
        # A sum: every policy has its own gradient, whatever the others do.
        return LossOutput(losses.sum(), {"lagrangian": losses.mean()}, moved)

    def solve(self, model: Saddle, data: Transitions, policy: int) -> Float[np.ndarray, " steps"]:
        """The ratios of one policy, with both last layers at the saddle point that their features allow.

        A positive ratio is max(phi . theta, 0). Where it is 0 it has no slope: these steps are left out and
        the rest is solved again, a few times, each going half of the way.
        """
        nu, zeta = jax.tree.map(lambda leaf: leaf[policy], (model.nu, model.average))
        number = jnp.int32(policy)  # an argument of compiled programs, which serve all policies
        initial = np.append(float(model.end_rate) * initial_features(nu, data, number), 1.0)
        theta, found = None, np.ones(data.steps)
        for _ in range(PASSES if self.positive else 1):
            sums: list[Any] = [0.0] * 4
            for part, count in split_rows(np.arange(data.steps)):
                counted = jnp.arange(len(part)) < count
                used = counted & jnp.asarray(found[part] > 0) if self.positive else counted
                products = _sum_products(
                    nu, zeta, data, number, part, counted, used, model.end_rate, model.spread
                )
                # In double precision: what a slow change weighs is the inverse of a small difference.
                sums = [old + np.asarray(new, np.float64) for old, new in zip(sums, products, strict=True)]
            zeta_square, nu_square, flow, earned = (total / data.steps for total in sums)
            solved = solve_saddle_point(self, zeta_square, nu_square, flow, earned, initial)
            theta = solved if theta is None else (theta + solved) / 2
            found = apply_last_layer(zeta, data, theta)
            if (found > 0).all():
                break
        return np.maximum(found, 0.0) if self.positive else found


@dataclass(frozen=True)
class DualDICE(DICE):
    """DualDICE (Nachum et al., 2019): no rewards, no positivity, no multiplier, not self-normalised."""

    reward: bool = False
    positive: bool = False
    normalised: bool = False
    self_normalised: bool = False
    method: str = "dualdice"


@dataclass(frozen=True)
class GenDICE(DICE):
    """GenDICE (Zhang et al., 2020): values are regularised instead of ratios, and rewards are left out."""

    primal_regulariser: float = 1.0
    dual_regulariser: float = 0.0
    reward: bool = False
    method: str = "gendice"


class Saddle(eqx.Module):
    """The variables of the Lagrangian, stacked by policy: nu and lambda go down, zeta goes up.

    nu is offset + unit * network in spreads of the reward; its start fits a zeta of 1.
    """

    nu: Network  # values
    zeta: Network  # ratios
    lam: Float[Array, " policies"]  # the multiplier
    average: Network  # of zeta; what ratios are made of in the end
    offset: Float[Array, ""]
    unit: Float[Array, ""]
    spread: Float[Array, ""]  # of rewards
    end_rate: Float[Array, ""]


# The Lagrangian (Yang et al., 2020, with f(x) = x^2 / 2) is the mean of `initial_term` over initial
# observations plus the mean of `step_term` over logged steps. Without regularisers it makes ratios fulfil the
# flow constraint: what flows into an observation and action, from a beginning or from the step before, must
# flow out of it. zeta is the ratio of discounted visits to logged ones, times `end_rate`, which only sets the
# scale: ratios that are 1 everywhere fulfil
#
#     mean of zeta * (1 - continuation) = end_rate,
#
# and so do the right ones, for that is the flow of everything together: what begins must end, by a
# termination or by the discount. In endless tasks `end_rate` is the paper's 1 - gamma, and this says that
# ratios average 1. Where episodes end, it says what an absorbing state would.


def initial_term(settings: DICE, nu: Array, lam: Array, end_rate: Array) -> Array:
    """(1 - gamma) nu(s_0, a_0) + lambda."""
    return end_rate * nu + (lam if settings.normalised else 0.0)


def step_term(
    settings: DICE,
    zeta: Array,
    nu: Array,
    next_nu: Array,
    lam: Array,
    *,
    reward: Array,
    continuation: Array,
    end_rate: Array,
) -> Array:
    """zeta (r + gamma nu(s', a') - nu(s, a) - lambda) + alpha_nu f(nu) - alpha_zeta f(zeta)."""
    residual = continuation * next_nu - nu
    if settings.reward:
        residual = residual + reward
    if settings.normalised:
        residual = residual - lam * (1 - continuation) / end_rate
    penalty = settings.primal_regulariser * nu**2 - settings.dual_regulariser * zeta**2
    return zeta * residual + penalty / 2


def reverse_gradient(network: Any) -> Any:
    """The same network with the opposite gradient: where a loss descends, it ascends."""
    return jax.tree.map(lambda leaf: 2 * jax.lax.stop_gradient(leaf) - leaf, network)


@eqx.filter_jit
def _sum_products(
    nu: Network,
    zeta: Network,
    data: Transitions,
    policy: Array,
    step: Array,
    counted: Array,
    used: Array,
    end_rate: Array,
    spread: Array,
) -> tuple[Array, ...]:
    continuation = data.continuation[step][:, None]
    phi = logged_features(zeta, data, step) * used[:, None]
    psi = logged_features(nu, data, step) * counted[:, None]
    lost = psi - continuation * policy_features(nu, data, policy, data.before[step] + 1)
    lost = jnp.concatenate([lost, (1 - continuation) / end_rate], axis=1)
    psi = jnp.pad(psi, ((0, 0), (0, 1)))
    return phi.T @ phi, psi.T @ psi, phi.T @ lost, phi.T @ data.reward[step] / spread


def solve_saddle_point(
    settings: DICE,
    zeta_square: Float[np.ndarray, "phi phi"],
    nu_square: Float[np.ndarray, "psi psi"],
    flow: Float[np.ndarray, "phi psi"],
    earned: Float[np.ndarray, " phi"],
    initial: Float[np.ndarray, " psi"],
) -> Float[np.ndarray, " phi"]:
    """theta where the Lagrangian of zeta = phi . theta and nu = psi . w has no slope in theta, w and lambda.

    Its moments are the means over the log of phi phi^T, psi psi^T, phi (psi - continuation * psi')^T and
    phi r, and end_rate * psi at initial observations. lambda is the last entry of w: psi ends with 0, and
    what psi loses in a step with how much ends.
    """
    kept = slice(None) if settings.normalised else slice(-1)
    nu_square, flow, initial = nu_square[kept, kept], flow[:, kept], initial[kept]
    values = settings.primal_regulariser * nu_square + make_ridge(nu_square, RIDGE)
    share = DUAL_RIDGE * settings.dual_regulariser if settings.dual_regulariser else BARE_RIDGE
    ratios = settings.dual_regulariser * zeta_square + make_ridge(zeta_square, share)
    system = np.block([[values, -flow.T], [flow, ratios]])
    right = np.concatenate([-initial, earned if settings.reward else np.zeros_like(earned)])
    return np.linalg.solve(system, right)[len(initial) :]


def make_ridge(square: Float[np.ndarray, "n n"], share: float) -> Float[np.ndarray, "n n"]:
    """What keeps a system solvable: a share of its mean diagonal."""
    return share * max(square.trace() / len(square), 1e-12) * np.eye(len(square))
