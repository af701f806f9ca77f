"""Fitted Q evaluation: what a policy earns, by regression on rewards and the regression's own predictions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from vlbm.estimators.fitted_q import FittedQ
from vlbm.estimators.least_squares import influence_weights
from vlbm.estimators.networks import Network, follow, repeat
from vlbm.estimators.shared_cache import SharedCache
from vlbm.estimators.transition_estimator import (
    TransitionEstimator,
    check_training,
    round_schedule,
    train_groups,
)
from vlbm.estimators.transitions import Batch, Problem, Transitions, split_rows
from vlbm.nn.training import LossOutput, train
from vlbm.parallel import Devices
from vlbm.policies.base import Policy
from vlbm.progress import Progress

SETTLED = 0.03  # of the value, or of the spread of values: a round that moves it by less has changed nothing


@dataclass(frozen=True)
class FQE(TransitionEstimator):
    """Fitted Q evaluation (Le et al., 2019): one network for every policy, trained when it is evaluated.

    A policy is worth the mean, over logged initial observations, of Q at what it does there. Q is fitted to
    r + discount * Q'(s', pi(s')), where Q' follows Q slowly and targets are clipped to what rewards like the
    logged ones can add up to. Training goes in rounds, in each of which the learning rate decays; a policy
    whose value a round no longer moves has settled, and a warning names those that have not.

    With a horizon that matters, time is one more observation. The interval resamples episodes, each with the
    value of its beginning and its Bellman residuals weighted by their influence (LSTD on the last hidden
    layer), and holds what the value would be if these equations were solved (`residual_correction`) and what
    the last round moved it by (`last_change`). It does not know what a policy does where nothing was logged:
    `outside_the_log` is the share of its actions at logged observations that are unlike any logged one.

    Args:
        units: Hidden layers of a network.
        layer_norm: Keeps values of actions far from the log near those of the log.
        twin: Take the smaller of two networks: with one alone, values far from the log can diverge.
        rounds: Of training, at most.
        steps: Of a round.
        batch: Logged steps in a batch.
        learning_rate: At the beginning of the first round; each further round has half of the one before.
        decay_rate: What remains of the learning rate at the end of a round.
        target_rate: How fast target networks follow, per step.
        draws: Actions drawn at every logged observation, where policies act at random.
        resamples: Of the interval.
    """

    method: ClassVar[str] = "fqe"
    units: tuple[int, ...] = (128, 128)
    layer_norm: bool = True
    twin: bool = True
    rounds: int = 3
    steps: int = 10_000
    batch: int = 256
    learning_rate: float = 1e-3
    decay_rate: float = 0.02
    target_rate: float = 0.01
    draws: int = 4
    resamples: int = 1000

    def __post_init__(self) -> None:
        check_training(self, "target_rate")

    def train(
        self,
        problem: Problem,
        policies: Mapping[str, Policy],
        *,
        seed: int,
        progress: Progress,
        cache: SharedCache,
    ) -> FittedQ:
        """The critics of all policies, or those that another method trained for the same question."""
        who = tuple((name, id(policy)) for name, policy in policies.items())
        apart = None if problem.held_out is None else problem.held_out.tobytes()
        return cache.recall(
            (self, who, problem.estimand, id(problem.log), apart, seed),
            lambda: fit_q(problem, policies, self, seed=seed, progress=progress),
        )


class Critics(eqx.Module):
    """Q of every policy and twin, as offset + unit * network, and target networks that follow slowly."""

    online: Network
    target: Network
    offset: Float[Array, ""]
    unit: Float[Array, ""]

    @classmethod
    def make(cls, problem: Problem, data: Transitions, settings: FQE, *, key: PRNGKeyArray) -> Critics:
        """Untrained critics; outputs begin at what the log earns and are about as spread as 1.

        Without terminations that is (1 - discount) Q in units of rewards; with them, episodes last less than
        1 / (1 - discount) steps, and values also vary by how long.
        """
        keys = jax.random.split(key, 2 if settings.twin else 1)
        twins = eqx.filter_vmap(
            lambda key: Network.make(data, settings.units, layer_norm=settings.layer_norm, key=key)
        )(keys)
        networks = repeat(twins, data.policies)
        reward = problem.reward.astype(np.float64)
        spread = np.sqrt((reward**2).mean()) if problem.log.terminated.any() else reward.std()
        steps = 1 / problem.end_rate
        return cls(
            networks, networks, jnp.float32(reward.mean() * steps), jnp.float32((spread or 1.0) * steps)
        )


def smaller_q(twins: Network, s: Float[Array, "batch inputs"], a: Float[Array, "batch act"]) -> Array:
    """Q of one policy in standard units: the smaller one of twins (clipped double Q; Fujimoto et al., 2018).

    Of discrete actions for each by itself, so that V is the mean of Q over what the policy does: doubly
    robust estimates rest on that.
    """
    smaller = eqx.filter_vmap(lambda q: jax.vmap(q.outputs)(s, a))(twins).min(axis=0)
    return (smaller * a).sum(axis=-1) if twins.discrete else smaller[:, 0]


def bellman_loss(critics: Critics, batch: Batch, key: PRNGKeyArray, target_rate: float) -> LossOutput:
    """The squared distance of Q(s, a) from r + discount * Q'(s', pi(s')), in standard units."""
    offset, unit, targets = jax.lax.stop_gradient((critics.offset, critics.unit, critics.target))

    def of_policy(online: Network, target: Network, next_a: Float[Array, "batch act"]) -> Array:
        next_q = offset + unit * smaller_q(target, batch.next_s, next_a)
        y = jnp.clip(batch.reward + batch.continuation * next_q, batch.low, batch.high)
        q = eqx.filter_vmap(lambda network: jax.vmap(network)(batch.s, batch.a))(online)
        return jnp.square(q - (y - offset) / unit).mean(axis=-1).sum()

    of_each = eqx.filter_vmap(of_policy, in_axes=(eqx.if_array(0), eqx.if_array(0), 1))
    losses = of_each(critics.online, targets, batch.next_a)
    targets = follow(targets, critics.online, target_rate)
    # A sum: every policy has its own gradient, whatever the others do.
    return LossOutput(
        losses.sum(), {"loss": losses.mean()}, Critics(critics.online, targets, critics.offset, critics.unit)
    )


def train_critics(
    critics: Critics,
    data: Transitions,
    settings: FQE,
    *,
    key: PRNGKeyArray,
    devices: Devices,
    progress: Progress,
) -> tuple[Critics, Float[np.ndarray, " policies"], Bool[np.ndarray, " policies"], bool]:
    """Rounds of training, each from where the one before ended; converged policies take no further part.

    Also what the last round moved every value by, which policies have converged, and whether Ctrl-C came.
    """
    converged, change = np.zeros(data.policies, bool), np.full(data.policies, np.inf)
    value, interrupted = state_values(critics, data, data.initial).mean(axis=1), False
    for number in range(settings.rounds):
        rest = np.flatnonzero(~converged)
        trained, history = train(
            bellman_loss,
            select(critics, rest),
            data.of_policies(rest),
            constants=(settings.target_rate,),
            schedule=round_schedule(settings, learning_rate=settings.learning_rate * 0.5**number),
            validate=None,
            key=jax.random.fold_in(key, number),
            batch=settings.batch,
            devices=devices,
            progress=progress.with_title("fitting Q"),
        )
        critics = update(critics, rest, trained)
        after = state_values(critics, data, data.initial).mean(axis=1)
        change, value = np.where(converged, change, np.abs(after - value)), after
        interrupted = history.interrupted
        # What the first round moves is the start, not the fit.
        if number > 0:
            converged |= change < SETTLED * np.maximum(np.abs(value), float(critics.unit))
        if interrupted or converged.all():
            break
    return critics, change, converged, interrupted


def select(critics: Critics, policies: Int[np.ndarray, " chosen"]) -> Critics:
    """The critics of some policies."""
    online, target = jax.tree.map(lambda leaf: leaf[policies], (critics.online, critics.target))
    return Critics(online, target, critics.offset, critics.unit)


def update(critics: Critics, policies: Int[np.ndarray, " chosen"], trained: Critics) -> Critics:
    """All critics, with those of some policies replaced."""
    online, target = jax.tree.map(
        lambda old, new: jnp.asarray(old).at[policies].set(new),
        (critics.online, critics.target),
        (trained.online, trained.target),
    )
    return Critics(online, target, critics.offset, critics.unit)


def state_values(critics: Critics, data: Transitions, rows: Any) -> Float[np.ndarray, "policies rows"]:
    """V of every policy at some observations: the mean of Q over its draws."""
    return _in_chunks(_state_values, critics, data, np.asarray(rows))


def action_values(critics: Critics, data: Transitions) -> Float[np.ndarray, "policies steps"]:
    """Q of every logged action."""
    return _in_chunks(_action_values, critics, data, np.arange(data.steps))


def _in_chunks(function: Any, critics: Critics, data: Transitions, rows: np.ndarray) -> np.ndarray:
    parts = [
        np.asarray(function(critics, data, part), np.float64)[:, :count] for part, count in split_rows(rows)
    ]
    return float(critics.offset) + float(critics.unit) * np.concatenate(parts, axis=1)


@eqx.filter_jit
def _state_values(critics: Critics, data: Transitions, rows: Array) -> Float[Array, "policies rows"]:
    s, drawn = data.observation[rows], data.policy_action[:, rows]

    def of_policy(twins: Network, drawn: Float[Array, "draws rows act"]) -> Array:
        return jax.vmap(lambda a: smaller_q(twins, s, a))(drawn).mean(axis=0)

    return eqx.filter_vmap(of_policy, in_axes=(eqx.if_array(0), 2))(critics.online, drawn)


@eqx.filter_jit
def _action_values(critics: Critics, data: Transitions, steps: Array) -> Float[Array, "policies steps"]:
    s, a = data.observation[data.before[steps]], data.action[steps]
    return eqx.filter_vmap(lambda twins: smaller_q(twins, s, a))(critics.online)


def fit_q(
    problem: Problem, policies: Mapping[str, Policy], settings: FQE, *, seed: int, progress: Progress
) -> FittedQ:
    """Train the critics of all policies, and evaluate them on the whole log."""
    policy_key, network_key, step_key = jax.random.split(jax.random.key(seed), 3)
    data = problem.transitions(policies, draws=settings.draws, key=policy_key)

    def train_group(group: Transitions, devices: Devices, *, progress: Progress) -> tuple:
        critics = Critics.make(problem, group, settings, key=network_key)
        return train_critics(critics, group, settings, key=step_key, devices=devices, progress=progress)

    groups, change, converged, interrupted = zip(
        *train_groups(train_group, data, settings, progress), strict=True
    )
    online, target = jax.tree.map(
        lambda *parts: jnp.concatenate(parts), *((part.online, part.target) for part in groups)
    )
    critics = Critics(online, target, groups[0].offset, groups[0].unit)
    low, high = problem.value_range(problem.row_time)
    every_row = np.arange(len(problem.log.observation))
    return FittedQ(
        problem=problem,
        names=tuple(policies),
        q=np.clip(action_values(critics, data), low[problem.before], high[problem.before]),
        v=np.clip(state_values(critics, data, every_row), low, high),
        weight=influence_weights(jax.tree.map(lambda leaf: leaf[:, 0], online), data),
        change=np.concatenate(change),
        converged=np.concatenate(converged),
        unit=float(critics.unit),
        outside=problem.outside_shares(data, seed=seed),
        interrupted=any(interrupted),
    )
