"""DICE: how much more often than the log a policy does something, as the saddle point of a Lagrangian."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

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
    logged ones. Ratios and values are networks that play against each other; `Lagrangian` says what for. As
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
    the ratio network's features make of the same log (`lstd_change`). Returns are never seen, so quantiles
    and lengths are unknown. `details` say how far ratios are from what sound ones must be:
    `mean_ratio` is 1 for these, and `flow_violation` 0. Where a policy is deterministic and actions are
    vectors, no exact ratio exists, and what networks make of it is a guess that `effective_share` tells of.

    Args:
        primal_regulariser: Of values.
        dual_regulariser: Of ratios.
        reward: Whether the players see rewards; without, the same ratios are sought.
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

    @property
    def lagrangian(self) -> Lagrangian:
        return Lagrangian(self.primal_regulariser, self.dual_regulariser, self.reward, self.normalised)

    @property
    def loss(self) -> SaddleLoss:
        return SaddleLoss(self.lagrangian, self.averaging)

    def make_model(self, problem: Problem, data: Transitions, key: PRNGKeyArray) -> Players:
        discrete, (value_key, ratio_key) = problem.episodes.discrete, jax.random.split(key)
        value = make_networks(
            data, self.units, layer_norm=self.layer_norm, discrete=discrete, start=0.0, key=value_key
        )
        ratio = make_networks(
            data,
            self.units,
            layer_norm=self.layer_norm,
            discrete=discrete,
            positive=self.positive,
            start=1.0,
            key=ratio_key,
        )
        return Players(value, ratio, jnp.zeros(data.policies), ratio, Scale.of(problem, self))

    def weigh(self, model: Players, data: Transitions, policy: int) -> Float[np.ndarray, " steps"]:
        value, ratio = jax.tree.map(lambda leaf: leaf[policy], (model.value, model.average))
        return solve_ratio(value, ratio, model.scale, data, policy, self)


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


@dataclass(frozen=True)
class Lagrangian:
    """Small in values and the multiplier, large in ratios: mean of `at_beginnings` plus mean of `at_steps`.

    Without regularisers, values say that ratios must fulfil the flow constraint: what flows into an
    observation and action, from a beginning or from the step before, must flow out of it. The ratio is that
    of discounted visits to logged ones, times `end_rate`, which only sets the scale: ratios that are 1
    everywhere fulfil

        mean of ratio * (1 - continuation) = end_rate,

    and so do the right ones, for that is the flow of everything together: what begins must end, by a
    termination or by the discount. For endless tasks it says that ratios average 1, and `end_rate` is
    1 - discount. Where episodes end, it says what an absorbing state would.
    """

    primal_regulariser: float  # of values
    dual_regulariser: float  # of ratios
    reward: bool  # whether rewards enter; the ratio at the saddle point is the same without
    normalised: bool  # whether that constraint has a multiplier of its own

    def at_beginnings(self, value: Array, multiplier: Array, end_rate: Array) -> Array:
        return end_rate * value + (multiplier if self.normalised else 0.0)

    def at_steps(
        self,
        ratio: Array,
        value: Array,
        next_value: Array,
        multiplier: Array,
        *,
        reward: Array,
        continuation: Array,
        end_rate: Array,
    ) -> Array:
        residual = continuation * next_value - value
        if self.reward:
            residual = residual + reward
        if self.normalised:
            residual = residual - multiplier * (1 - continuation) / end_rate
        penalty = self.primal_regulariser * value**2 - self.dual_regulariser * ratio**2
        return ratio * residual + penalty / 2


class Scale(NamedTuple):
    """Values are offset + unit * output, in spreads of the reward; their start fits ratios of 1."""

    offset: Float[Array, ""]
    unit: Float[Array, ""]
    reward: Float[Array, ""]
    end_rate: Float[Array, ""]

    @classmethod
    def of(cls, problem: Problem, settings: DICE) -> Scale:
        reward = problem.episodes.reward[problem.step].astype(float)
        spread, lasting = float(reward.std()) or 1.0, 1 / problem.end_rate
        # Where ratios are 1, values solve the Bellman equation for rewards less what ratios cost.
        mean = float(reward.mean()) / spread if settings.reward else 0.0
        offset, unit = (mean - settings.dual_regulariser) * lasting, lasting
        if settings.primal_regulariser:
            offset, unit = 0.0, 1.0
        return cls(*(jnp.float32(part) for part in (offset, unit, spread, problem.end_rate)))


class Players(eqx.Module):
    """Networks stacked by policy: values and the multiplier go down, ratios go up."""

    value: Network
    ratio: Network
    multiplier: Float[Array, " policies"]
    average: Network  # of the ratios; what is believed
    scale: Scale


def ascend(player: Any) -> Any:
    """The same player, whose gradient points the other way: what descends for the others ascends for it."""
    return jax.tree.map(lambda leaf: 2 * jax.lax.stop_gradient(leaf) - leaf, player)


@dataclass(frozen=True)
class SaddleLoss:
    """The Lagrangian of every policy on a batch."""

    lagrangian: Lagrangian
    averaging: float

    def __call__(self, players: Players, batch: Batch, key: PRNGKeyArray) -> LossOutput:
        offset, unit, spread, end_rate = jax.lax.stop_gradient(players.scale)

        def of_policy(value: Network, ratio: Network, multiplier: Array, next_a: Array, initial_a: Array):
            def nu(s: Array, a: Array) -> Array:
                return offset + unit * jax.vmap(value)(s, a)

            begun = self.lagrangian.at_beginnings(nu(batch.initial_s, initial_a), multiplier, end_rate)
            went = self.lagrangian.at_steps(
                jax.vmap(ascend(ratio))(batch.s, batch.a),
                nu(batch.s, batch.a),
                nu(batch.next_s, next_a),
                multiplier,
                reward=batch.reward / spread,
                continuation=batch.continuation,
                end_rate=end_rate,
            )
            return begun.mean() + went.mean()

        networks = (eqx.if_array(0), eqx.if_array(0), 0)
        losses = eqx.filter_vmap(of_policy, in_axes=(*networks, 1, 1))(
            players.value, players.ratio, players.multiplier, batch.next_a, batch.initial_a
        )
        average = follow(jax.lax.stop_gradient(players.average), players.ratio, self.averaging)
        moved = eqx.tree_at(lambda players: players.average, players, average)
        # A sum: every policy has its own gradient, whatever the others do.
        return LossOutput(losses.sum(), {"lagrangian": losses.mean()}, moved)


class Moments(NamedTuple):
    """Means over the log that the Lagrangian is made of where ratio = phi . theta and value = psi . w.

    The multiplier is the last entry of w: psi ends with 0, and what psi loses in a step with how much ends.
    """

    ratio_square: Float[np.ndarray, "phi phi"]  # phi phi^T
    value_square: Float[np.ndarray, "psi psi"]  # psi psi^T
    flow: Float[np.ndarray, "phi psi"]  # phi (psi - continuation * psi')^T
    earned: Float[np.ndarray, " phi"]  # phi * reward
    begun: Float[np.ndarray, " psi"]  # end_rate * psi where episodes begin

    def solve_saddle_point(self, game: Lagrangian) -> Float[np.ndarray, " phi"]:
        """theta where the Lagrangian has no slope in theta, w and the multiplier."""
        used = slice(None) if game.normalised else slice(-1)
        square, flow, begun = self.value_square[used, used], self.flow[:, used], self.begun[used]
        values = game.primal_regulariser * square + add_ridge(square, RIDGE)
        ridge = DUAL_RIDGE * game.dual_regulariser if game.dual_regulariser else BARE_RIDGE
        ratios = game.dual_regulariser * self.ratio_square + add_ridge(self.ratio_square, ridge)
        system = np.block([[values, -flow.T], [flow, ratios]])
        right = np.concatenate([-begun, self.earned if game.reward else np.zeros_like(self.earned)])
        return np.linalg.solve(system, right)[len(begun) :]


def add_ridge(square: Float[np.ndarray, "n n"], share: float) -> Float[np.ndarray, "n n"]:
    """What keeps a system solvable: a share of its mean diagonal."""
    return share * max(square.trace() / len(square), 1e-12) * np.eye(len(square))


def solve_ratio(
    value: Network, ratio: Network, scale: Scale, data: Transitions, number: int, settings: DICE
) -> Float[np.ndarray, " steps"]:
    """The ratios of one policy, with both last layers at the saddle point that their features allow.

    A positive ratio is max(phi . theta, 0). Where it is 0 it has no slope: these steps are left out and the
    rest is solved again, a few times, each going half of the way.
    """
    policy = jnp.int32(number)  # an argument of compiled programs, which serve all policies
    begun = np.append(float(scale.end_rate) * begin_features(value, data, policy), 1.0)
    theta, found = None, np.ones(data.steps)
    for _ in range(PASSES if settings.positive else 1):
        sums: list[Any] = [0.0] * 4
        for part, count in split_rows(np.arange(data.steps)):
            counted = jnp.arange(len(part)) < count
            used = counted & jnp.asarray(found[part] > 0) if settings.positive else counted
            products = _sum_products(value, ratio, scale, data, policy, part, counted, used)
            # In double precision: what a slow change weighs is the inverse of a small difference.
            sums = [old + np.asarray(new, np.float64) for old, new in zip(sums, products, strict=True)]
        ratio_square, value_square, flow, earned = (total / data.steps for total in sums)
        moments = Moments(ratio_square, value_square, flow, earned, begun)
        solved = moments.solve_saddle_point(settings.lagrangian)
        theta = solved if theta is None else (theta + solved) / 2
        found = apply_last_layer(ratio, data, theta)
        if (found > 0).all():
            break
    return np.maximum(found, 0.0) if settings.positive else found


@eqx.filter_jit
def _sum_products(
    value: Network,
    ratio: Network,
    scale: Scale,
    data: Transitions,
    policy: Array,
    step: Array,
    counted: Array,
    used: Array,
) -> tuple[Array, ...]:
    continuation = data.continuation[step][:, None]
    phi = logged_features(ratio, data, step) * used[:, None]
    psi = logged_features(value, data, step) * counted[:, None]
    lost = psi - continuation * policy_features(value, data, policy, data.before[step] + 1)
    lost = jnp.concatenate([lost, (1 - continuation) / scale.end_rate], axis=1)
    psi = jnp.pad(psi, ((0, 0), (0, 1)))
    return phi.T @ phi, psi.T @ psi, phi.T @ lost, phi.T @ data.reward[step] / scale.reward
