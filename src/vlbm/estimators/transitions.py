"""Logged transitions as value functions and density ratios learn from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from vlbm.data.episodes import Episodes
from vlbm.data.outcomes import describe_left_out
from vlbm.data.scaler import Scaler
from vlbm.errors import InputError
from vlbm.estimand import Estimand
from vlbm.policies.base import Policy
from vlbm.policies.tabulate import tabulate_actions
from vlbm.results.diagnostics.support import Support
from vlbm.results.feasible import bound_returns, sum_discounts

# Where less than this share of an endless value lies beyond the horizon, time is left out of observations:
# values then hardly depend on it, and a function that need not know it is learnt far better.
NEGLIGIBLE = 0.01
CHUNK = 8192  # rows that are computed at once
LOOKED_AT = 1500  # logged observations at which actions are compared with logged ones


class Batch(NamedTuple):
    """Transitions (s, a, r, s') of one step of training, and as many initial observations."""

    s: Float[Array, "batch inputs"]
    a: Float[Array, "batch act"]
    reward: Float[Array, " batch"]
    continuation: Float[Array, " batch"]
    next_s: Float[Array, "batch inputs"]
    next_a: Float[Array, "batch policies act"]  # of every policy
    low: Float[Array, " batch"]  # what can be earned at least from s on
    high: Float[Array, " batch"]
    initial_s: Float[Array, "batch inputs"]
    initial_a: Float[Array, "batch policies act"]


class Transitions(eqx.Module):
    """Standardised logged steps, with what every policy does at every observation.

    Step i was taken at row `before[i]` of the observations and led to row `before[i] + 1`. Action vectors are
    standardised, discrete actions are one-hot; policies' discrete actions are probabilities.
    """

    observation: Float[Array, "rows inputs"]  # where the horizon matters, time is the last column
    action: Float[Array, "steps act"]
    reward: Float[Array, " steps"]
    before: Int[Array, " steps"]
    continuation: Float[Array, " steps"]  # the discount, or 0 where nothing is earned after the step
    low: Float[Array, " rows"]  # what can be earned at least from here on, with rewards like the logged ones
    high: Float[Array, " rows"]
    initial: Int[Array, " episodes"]  # rows that episodes begin with
    pool: Int[Array, " pool"]  # the steps that are learnt from
    policy_action: Float[Array, "draws rows policies act"]
    discrete: bool = eqx.field(static=True)

    @property
    def steps(self) -> int:
        return len(self.reward)

    @property
    def policies(self) -> int:
        return self.policy_action.shape[2]

    def draw(self, batch: int, key: PRNGKeyArray) -> Batch:
        """Steps and initial observations, each equally likely."""
        step_key, initial_key, draw_key = jax.random.split(key, 3)
        step = self.pool[jax.random.randint(step_key, (batch,), 0, len(self.pool))]
        row, begin = self.before[step], jax.random.randint(initial_key, (batch,), 0, len(self.initial))
        initial = self.initial[begin]
        draw = jax.random.randint(draw_key, (2, batch), 0, len(self.policy_action))
        return Batch(
            s=self.observation[row],
            a=self.action[step],
            reward=self.reward[step],
            continuation=self.continuation[step],
            next_s=self.observation[row + 1],
            next_a=self.policy_action[draw[0], row + 1],
            low=self.low[row],
            high=self.high[row],
            initial_s=self.observation[initial],
            initial_a=self.policy_action[draw[1], initial],
        )

    def of_policies(self, chosen: Int[np.ndarray, " chosen"]) -> Transitions:
        """The same steps with some of the policies alone."""
        return eqx.tree_at(lambda all: all.policy_action, self, self.policy_action[:, :, chosen])


@dataclass(frozen=True, eq=False)
class Problem:
    """An estimand and the log that it is estimated from, as Bellman equations need them.

    An episode that was cut off goes on in value; one that terminated earns nothing more. Where the horizon
    matters, the time of an episode is one more observation, and the step that reaches it has no future.
    """

    log: Episodes
    estimand: Estimand
    held_out: Bool[np.ndarray, " episodes"] | None = None  # nothing is learnt from these

    def __post_init__(self) -> None:
        if not np.isfinite(self.log.reward).all():
            raise InputError("reward: some are not finite; mend the log first")
        self.warnings()  # refuses a log that too much would be missing from

    @property
    def limit(self) -> int | None:
        """The horizon, where leaving it out would matter."""
        horizon = self.estimand.horizon
        return None if horizon is None or self.estimand.discount**horizon < NEGLIGIBLE else horizon

    @cached_property
    def step(self) -> Int[np.ndarray, " steps"]:
        """Which logged steps lie within the horizon and can be learnt from."""
        within = np.ones(self.log.steps, bool) if self.limit is None else self.log.time < self.limit
        return np.flatnonzero(within & ~self._left_out)

    @cached_property
    def _left_out(self) -> Bool[np.ndarray, " steps"]:
        """Steps within the horizon whose outcome counts and is unknown."""
        unknown = ~self.log.outcome_known
        # What follows the step that reaches the horizon counts for nothing.
        return unknown if self.limit is None else unknown & (self.log.time < self.limit - 1)

    @cached_property
    def _left_out_warnings(self) -> list[str]:
        return describe_left_out(self.log, self._left_out)

    @cached_property
    def reward(self) -> Float[np.ndarray, " steps"]:
        return self.log.reward[self.step]

    @cached_property
    def before(self) -> Int[np.ndarray, " steps"]:
        """The observation that every step was taken at; the next one came of it."""
        return self.log.observation_before[self.step]

    @cached_property
    def continuation(self) -> Float[np.ndarray, " steps"]:
        """The discount, or 0 where a termination or the horizon ended the episode."""
        goes_on = np.full(self.log.steps, self.estimand.discount)
        goes_on[(np.cumsum(self.log.length) - 1)[self.log.terminated]] = 0.0
        if self.limit is not None:
            goes_on[self.log.time >= self.limit - 1] = 0.0
        return goes_on[self.step]

    @cached_property
    def row_time(self) -> Int[np.ndarray, " rows"]:
        """When in its episode every observation was made."""
        rows = self.log.length + 1
        return np.arange(rows.sum()) - np.repeat(np.cumsum(rows) - rows, rows)

    @cached_property
    def end_rate(self) -> float:
        """How much ends at a logged step, by a termination or by the discount: 1 - discount, or more.

        Its inverse is how many steps a logged episode lasts, discounted.
        """
        rate = float((1 - self.continuation).mean())
        # Undiscounted, and no logged episode reached its end: only the horizon is known to end them.
        return rate if rate > 0 else 1 / (self.limit or 1)

    def sum_episodes(self, terms: Float[np.ndarray, " steps"]) -> Float[np.ndarray, " episodes"]:
        """Terms of steps, added up episode by episode."""
        return np.bincount(self.log.episode_of_step[self.step], terms, minlength=self.log.count)

    def value_range(self, time: Int[np.ndarray, " rows"]) -> tuple[np.ndarray, np.ndarray]:
        """What can be earned at least and at most from a time on, if all rewards are like logged ones."""
        left = None if self.limit is None else self.limit - time
        total = np.broadcast_to(sum_discounts(self.estimand.discount, left), time.shape)
        lowest, highest = float(self.reward.min()), float(self.reward.max())
        return bound_returns(lowest, highest, total, can_end=bool(self.log.terminated.any()))

    def clip_shift(self, value: float, shift: float) -> float:
        """As much of a shift of a value as rewards like the logged ones allow."""
        low, high = self.value_range(np.zeros(1, int))
        return float(np.clip(value + shift, min(low[0], value), max(high[0], value))) - value

    def transitions(self, policies: Mapping[str, Policy], *, draws: int, key: PRNGKeyArray) -> Transitions:
        """The log on the device, with what the policies do there."""
        log = self.log
        table = tabulate_actions(
            policies,
            log.observation,
            action_size=log.action_size,
            discrete=log.discrete,
            actions=self.estimand.actions,
            draws=draws,
            key=key,
        )
        if log.discrete:
            action = np.eye(log.action_size, dtype=np.float32)[log.action[self.step]]
        else:
            mean, scale = self._action_scale
            action = (log.action[self.step] - mean) / scale
            table -= mean
            table /= scale
        low, high = self.value_range(self.row_time)
        held_out = np.zeros(log.count, bool) if self.held_out is None else self.held_out
        return Transitions(
            observation=jnp.asarray(self._inputs(), jnp.float32),
            action=jnp.asarray(action, jnp.float32),
            reward=jnp.asarray(self.reward, jnp.float32),
            before=jnp.asarray(self.before, jnp.int32),
            continuation=jnp.asarray(self.continuation, jnp.float32),
            low=jnp.asarray(low, jnp.float32),
            high=jnp.asarray(high, jnp.float32),
            initial=jnp.asarray(log.first_observation, jnp.int32),
            pool=jnp.asarray(np.flatnonzero(~held_out[log.episode_of_step[self.step]]), jnp.int32),
            policy_action=jnp.asarray(table),
            discrete=log.discrete,
        )

    def outside_shares(self, data: Transitions, *, seed: int) -> Float[np.ndarray, " policies"]:
        """For every policy, the share of its actions at logged observations that no logged step resembles."""
        log, generator = self.log, np.random.default_rng(seed)
        some = generator.choice(log.observation_before, min(LOOKED_AT, log.steps), replace=False)
        action = self.raw_actions(data, some)
        return Support.of(log, seed=seed).outside_shares(log.observation[some], action, discrete=log.discrete)

    def raw_actions(
        self, data: Transitions, rows: Int[np.ndarray, " rows"]
    ) -> Float[np.ndarray, "rows policies act"]:
        """What the policies do at some observations, in the log's own units, in one draw."""
        drawn = np.asarray(data.policy_action[0, rows], np.float64)
        if self.log.discrete:
            return drawn
        mean, scale = self._action_scale
        return drawn * scale + mean

    @cached_property
    def _action_scale(self) -> tuple[np.ndarray, np.ndarray]:
        scaler = Scaler.fit(self.log.action)
        return np.asarray(scaler.mean), np.asarray(scaler.scale)

    def _inputs(self) -> Float[np.ndarray, "rows inputs"]:
        scaler = Scaler.fit(self.log.observation)
        standardised = (self.log.observation - np.asarray(scaler.mean)) / np.asarray(scaler.scale)
        if self.limit is None:
            return standardised
        clock = np.sqrt(12) * (self.row_time / self.limit - 0.5)  # as spread as the others
        return np.concatenate([standardised, clock[:, None]], axis=1)

    def warnings(self) -> list[str]:
        found, longest = self._left_out_warnings, self.log.longest
        if self.limit is None or self.limit <= longest or self.log.terminated.all():
            return found
        return [
            *found,
            f"no logged episode is as long as the horizon of {self.limit}: from step {longest} on values are "
            "guessed",
        ]


def split_rows(rows: Int[np.ndarray, " rows"]) -> Iterator[tuple[Int[Array, " chunk"], int]]:
    """Chunks of one size, the last filled up with its own last row, and how many rows of each count."""
    size = min(CHUNK, len(rows))
    for first in range(0, len(rows), size):
        chosen = np.minimum(np.arange(first, first + size), len(rows) - 1)
        yield jnp.asarray(rows[chosen]), min(size, len(rows) - first)
