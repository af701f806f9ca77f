"""Logged transitions as value functions and density ratios learn from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from vlbm.data.episodes import Episodes
from vlbm.data.outcomes import describe_left_out
from vlbm.data.scaler import Scaler
from vlbm.errors import InputError
from vlbm.policies.base import Policy
from vlbm.policies.stacked import Actions
from vlbm.policies.tabulate import tabulate_actions
from vlbm.results.feasible import bound_returns, sum_discounts

# Where less than this share of an endless value lies beyond the horizon, time is left out of observations:
# values then hardly depend on it, and a function that need not know it is learnt far better.
NEGLIGIBLE = 0.01
CHUNK = 8192  # rows that are computed at once


class Batch(NamedTuple):
    """Transitions drawn for one step of training; beginnings are drawn with them, as many."""

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

    Step i answered row `before[i]` of the observations, and row `before[i] + 1` came of it. Action vectors
    are standardised, discrete actions are one-hot; policies' discrete actions are probabilities.
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

    @property
    def steps(self) -> int:
        return len(self.reward)

    @property
    def policies(self) -> int:
        return self.policy_action.shape[2]

    def draw(self, batch: int, key: PRNGKeyArray) -> Batch:
        """Steps and beginnings, each equally likely."""
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

    def of_policies(self, chosen: slice | Int[np.ndarray, " chosen"]) -> Transitions:
        """The same steps with some of the policies alone."""
        return eqx.tree_at(lambda all: all.policy_action, self, self.policy_action[:, :, chosen])


@dataclass(frozen=True)
class Draw:
    """What a step of training learns from."""

    batch: int

    def __call__(self, transitions: Transitions, key: PRNGKeyArray) -> Batch:
        return transitions.draw(self.batch, key)


@dataclass(frozen=True, eq=False)
class Problem:
    """What is to be estimated from which log: discounted rewards of at most `horizon` steps (None: endless).

    An episode that was cut off goes on in value; what the system ended earns nothing more. Where the horizon
    matters, the time of an episode is one more observation, and the step that reaches it has no future.
    """

    episodes: Episodes
    discount: float
    horizon: int | None
    actions: Actions
    held_out: Bool[np.ndarray, " episodes"] | None = None  # nothing is learnt from these

    def __post_init__(self) -> None:
        if self.horizon is None and self.discount == 1:
            raise InputError(
                "discount 1: without a horizon values need not be finite; give a horizon, or a discount "
                "below 1"
            )
        if not np.isfinite(self.episodes.reward).all():
            raise InputError("reward: some are not finite; mend the log first")
        describe_left_out(self.episodes, self._left_out)  # refuses a log that too much would be missing from

    @property
    def limit(self) -> int | None:
        """The horizon, where leaving it out would be seen."""
        if self.horizon is None or self.discount**self.horizon < NEGLIGIBLE:
            return None
        return self.horizon

    @property
    def step(self) -> Int[np.ndarray, " steps"]:
        """Which logged steps lie within the horizon and can be learnt from."""
        return np.flatnonzero(self._within & ~self._left_out)

    @property
    def _within(self) -> Bool[np.ndarray, " steps"]:
        if self.limit is None:
            return np.ones(self.episodes.steps, bool)
        return self.episodes.time < self.limit

    @property
    def _left_out(self) -> Bool[np.ndarray, " steps"]:
        """Steps within the horizon whose outcome counts and is unknown."""
        unknown = ~self.episodes.outcome_known
        # What follows the step that reaches the horizon counts for nothing.
        return unknown if self.limit is None else unknown & (self.episodes.time < self.limit - 1)

    @property
    def row_time(self) -> Int[np.ndarray, " rows"]:
        """When in its episode every observation was made."""
        rows = self.episodes.length + 1
        return np.arange(rows.sum()) - np.repeat(np.cumsum(rows) - rows, rows)

    @property
    def continuation(self) -> Float[np.ndarray, " steps"]:
        """The discount, or 0 where the system or the horizon ended the episode."""
        log = self.episodes
        goes_on = np.full(log.steps, self.discount)
        goes_on[(np.cumsum(log.length) - 1)[log.terminated]] = 0.0
        if self.limit is not None:
            goes_on[log.time >= self.limit - 1] = 0.0
        return goes_on[self.step]

    @property
    def end_rate(self) -> float:
        """How much ends at a logged step, by a termination or by the discount: 1 - discount, or more.

        Its inverse is how many steps a logged episode lasts, discounted.
        """
        rate = float((1 - self.continuation).mean())
        # Undiscounted, and no logged episode reached its end: only the horizon is known to end them.
        return rate if rate > 0 else 1 / (self.limit or 1)

    def value_range(self, time: Int[np.ndarray, " rows"]) -> tuple[np.ndarray, np.ndarray]:
        """What can be earned at least and at most from a time on, if all rewards are like logged ones."""
        reward = self.episodes.reward[self.step]
        lowest, highest = float(reward.min()), float(reward.max())
        left = None if self.limit is None else self.limit - time
        total = np.broadcast_to(sum_discounts(self.discount, left), time.shape)
        return bound_returns(lowest, highest, total, can_end=bool(self.episodes.terminated.any()))

    def transitions(self, policies: Mapping[str, Policy], *, draws: int, key: PRNGKeyArray) -> Transitions:
        """The log on the device, with what the policies do there."""
        log, step = self.episodes, self.step
        table = tabulate_actions(
            policies,
            log.observation,
            action_size=log.action_size,
            discrete=log.discrete,
            actions=self.actions,
            draws=draws,
            key=key,
        )
        if log.discrete:
            action = np.eye(log.action_size, dtype=np.float32)[log.action[step]]
        else:
            scaler = Scaler.fit(log.action)
            mean, scale = np.asarray(scaler.mean), np.asarray(scaler.scale)
            action = (log.action[step] - mean) / scale
            table -= mean
            table /= scale
        low, high = self.value_range(self.row_time)
        return Transitions(
            observation=jnp.asarray(self._inputs(), jnp.float32),
            action=jnp.asarray(action, jnp.float32),
            reward=jnp.asarray(log.reward[step], jnp.float32),
            before=jnp.asarray(log.observation_before[step], jnp.int32),
            continuation=jnp.asarray(self.continuation, jnp.float32),
            low=jnp.asarray(low, jnp.float32),
            high=jnp.asarray(high, jnp.float32),
            initial=jnp.asarray(log.first_observation, jnp.int32),
            pool=jnp.asarray(self._pool(), jnp.int32),
            policy_action=jnp.asarray(table),
        )

    def _pool(self) -> Int[np.ndarray, " pool"]:
        if self.held_out is None:
            return np.arange(len(self.step))
        return np.flatnonzero(~self.held_out[self.episodes.episode_of_step[self.step]])

    def raw_actions(
        self, data: Transitions, rows: Int[np.ndarray, " rows"]
    ) -> Float[np.ndarray, "rows policies act"]:
        """What the policies do at some observations, in the log's own units, in one draw."""
        drawn = np.asarray(data.policy_action[0, rows], np.float64)
        if self.episodes.discrete:
            return drawn
        scaler = Scaler.fit(self.episodes.action)
        return drawn * np.asarray(scaler.scale) + np.asarray(scaler.mean)

    def _inputs(self) -> Float[np.ndarray, "rows inputs"]:
        scaler = Scaler.fit(self.episodes.observation)
        standardised = (self.episodes.observation - np.asarray(scaler.mean)) / np.asarray(scaler.scale)
        if self.limit is None:
            return standardised
        clock = np.sqrt(12) * (self.row_time / self.limit - 0.5)  # as spread as the others
        return np.concatenate([standardised, clock[:, None]], axis=1)

    def warnings(self) -> list[str]:
        found = describe_left_out(self.episodes, self._left_out)
        longest = self.episodes.longest
        if self.limit is None or self.limit <= longest or self.episodes.terminated.all():
            return found
        return [
            *found,
            f"no logged episode is as long as the horizon of {self.limit}: from step {longest} on values are "
            "guessed",
        ]


def check_training(settings: Any, rate: str) -> None:
    """Refuse settings that no networks can be trained with on transitions; `rate` names one within (0, 1]."""
    for name in ("rounds", "steps", "batch", "draws", "resamples"):
        if getattr(settings, name) < 1:
            raise InputError(f"setting {name}={getattr(settings, name)}: must be at least 1")
    if not settings.units or min(settings.units) < 1:
        raise InputError(f"setting units={settings.units}: at least one hidden layer of one unit is needed")
    if not 0 < getattr(settings, rate) <= 1:
        raise InputError(f"setting {rate}={getattr(settings, rate)}: must be above 0 and at most 1")
    if not settings.learning_rate > 0:
        raise InputError(f"setting learning_rate={settings.learning_rate}: must be positive")


def split_rows(rows: Int[np.ndarray, " rows"]) -> Iterator[tuple[Int[Array, " chunk"], int]]:
    """Chunks of one size, the last filled up with its own last row, and how many rows of each count."""
    size = min(CHUNK, len(rows))
    for first in range(0, len(rows), size):
        chosen = np.minimum(np.arange(first, first + size), len(rows) - 1)
        yield jnp.asarray(rows[chosen]), min(size, len(rows) - first)
