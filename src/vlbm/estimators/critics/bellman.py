"""Logged steps on the device, and the Bellman equation that critics are trained to satisfy on them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Shaped

from vlbm.data.episodes import Episodes
from vlbm.data.scaler import Scaler
from vlbm.estimators.critics.networks import Critics, Seen
from vlbm.estimators.critics.representation import Trunk


@dataclass(frozen=True)
class Shape:
    """What a compiled program depends on."""

    policies: int
    models: int
    twin: bool
    discrete: bool
    lots: int = 1  # of policies, each on a device of its own
    empty: int = 0  # seats among the policies, the last ones

    @property
    def copies(self) -> int:
        """Networks of one policy."""
        return self.models * (2 if self.twin else 1)

    @property
    def lot(self) -> Shape:
        """What one device sees."""
        return replace(self, policies=self.policies // self.lots, lots=1, empty=0)

    def per_copy(self, values: Float[Array, "models ..."]) -> Float[Array, "copies ..."]:
        return jnp.repeat(values, 2, axis=0) if self.twin else values


class Logged(eqx.Module):
    """Standardised steps. Values are in units of `unit` from `offset`, so that networks begin near them."""

    observation: Float[Array, "rows obs"]
    action: Shaped[Array, " steps *act"]
    reward: Float[Array, " steps"]
    before: Int[Array, " steps"]  # row of the observation that was answered
    goes_on: Float[Array, " steps"]  # 0 where nothing can be earned after the step
    low: Float[Array, " rows"]  # what can be earned at least, from here on
    high: Float[Array, " rows"]
    weight: Float[Array, "episodes models"]
    episode: Int[Array, " steps"]
    unit: Float[Array, ""]
    offset: Float[Array, ""]
    discount: Float[Array, ""]
    trunk: Trunk | None = None  # without one, networks see observations alone

    def seen(self, row: Int[Array, " batch"], shape: Shape) -> Seen:
        """Observations as the networks take them."""
        plain = self.observation[row]
        if self.trunk is None:
            return Seen(plain, jnp.broadcast_to(plain, (shape.copies, *plain.shape)))
        return Seen(plain, shape.per_copy(self.trunk(plain)))

    def targets(
        self,
        critics: Critics,
        step: Int[Array, " batch"],
        choice: Float[Array, "batch policies*act"],
        shape: Shape,
    ) -> Float[Array, "models policies batch"]:
        """The reward and what the policies will earn after it.

        An episode that was cut off goes on in value: only what the system or the horizon ended has none.
        """
        after = self.before[step] + 1
        value, _ = self.state_values(critics, after, choice, shape)
        future = self.discount * self.goes_on[step] * (self.offset + self.unit * value)
        return (self.reward[step] + future - self.offset) / self.unit

    def state_values(
        self,
        critics: Critics,
        row: Int[Array, " batch"],
        choice: Float[Array, "batch policies*act"],
        shape: Shape,
    ) -> tuple[Float[Array, "models policies batch"], Float[Array, "models policies batch"]]:
        """V within the feasible range, and how far outside it was."""
        chosen = choice.reshape(len(row), shape.policies, -1)
        observation = self.seen(row, shape)
        if shape.discrete:
            free = jnp.einsum("cpab,bpa->cpb", critics(observation, None), chosen)
        else:
            free = critics(observation, chosen)[:, :, 0]
        free = _smaller_twin(free, shape)
        feasible = jnp.clip(free, self.low[row], self.high[row])
        return feasible, jnp.abs(free - feasible)

    def action_values(
        self, critics: Critics, step: Int[Array, " batch"], shape: Shape
    ) -> Float[Array, "copies policies batch"]:
        """Q of the logged actions."""
        observation, action = self.seen(self.before[step], shape), self.action[step]
        if not shape.discrete:
            return critics(observation, action)[:, :, 0]
        outputs = critics(observation, None)
        return jnp.take_along_axis(outputs, action[None, None, None], axis=-2)[:, :, 0]

    def logged_values(
        self, critics: Critics, step: Int[Array, " batch"], shape: Shape
    ) -> Float[Array, "models policies batch"]:
        """Q of the logged actions, within the feasible range of their observations."""
        row = self.before[step]
        values = _smaller_twin(self.action_values(critics, step, shape), shape)
        return jnp.clip(values, self.low[row], self.high[row])


def _smaller_twin(values: Float[Array, "copies policies batch"], shape: Shape) -> Array:
    return values.reshape(shape.models, -1, *values.shape[1:]).min(axis=1)


@dataclass(frozen=True, eq=False)
class Problem:
    """What is to be evaluated on which steps: an endless task, or one that ends after `horizon` steps.

    With a horizon, the time of an episode is one more observation, and the step that reaches the
    horizon has no future. Steps beyond it are left out.
    """

    episodes: Episodes
    discount: float
    horizon: int | None
    scaler: Scaler  # of observations
    action_scaler: Scaler | None

    @property
    def usable(self) -> Int[np.ndarray, " usable"]:
        """Steps within the horizon."""
        steps = np.arange(self.episodes.steps)
        return steps if self.horizon is None else steps[self.episodes.time < self.horizon]

    @property
    def row_time(self) -> Int[np.ndarray, " rows"]:
        """Step number of every observation."""
        rows = self.episodes.length + 1
        return np.arange(rows.sum()) - np.repeat(np.cumsum(rows) - rows, rows)

    def inputs(
        self, observation: Float[np.ndarray, "rows obs"], time: Int[np.ndarray, " rows"]
    ) -> Float[np.ndarray, "rows inputs"]:
        """Observations as networks see them."""
        standardised = (observation - np.asarray(self.scaler.mean)) / np.asarray(self.scaler.scale)
        if self.horizon is None:
            return standardised.astype(np.float32)
        clock = np.sqrt(12) * (time / self.horizon - 0.5)  # as spread as the others
        return np.concatenate([standardised, clock[:, None]], axis=1).astype(np.float32)

    def actions(self, action: Shaped[np.ndarray, " steps *act"]) -> Shaped[np.ndarray, " steps *act"]:
        """Actions as networks see them."""
        if self.action_scaler is None:
            return np.asarray(action, np.int32)
        scaler = self.action_scaler
        return ((action - np.asarray(scaler.mean)) / np.asarray(scaler.scale)).astype(np.float32)

    def range(
        self, time: Int[np.ndarray, " rows"]
    ) -> tuple[Float[np.ndarray, " rows"], Float[np.ndarray, " rows"]]:
        """What can be earned at least and at most from a time on, if all rewards are like logged ones."""
        reward = self.episodes.reward[self.usable]
        lowest, highest = float(reward.min()), float(reward.max())
        total = self._total(time)
        # Where episodes can end, they can end at once.
        least = np.minimum(total, 1.0) if self.episodes.terminated.any() else total
        return np.minimum(lowest * total, lowest * least), np.maximum(highest * total, highest * least)

    def feasible_change(self, value: float, change: float) -> float:
        """As much of a change of a policy's value as rewards like the logged ones allow."""
        low, high = self.range(np.zeros(1, int))
        return float(np.clip(value + change, min(low[0], value), max(high[0], value))) - value

    def logged(self, weight: Float[np.ndarray, "episodes models"]) -> Logged:
        episodes = self.episodes
        last = np.cumsum(episodes.length) - 1
        goes_on = np.ones(episodes.steps, np.float32)
        goes_on[last[episodes.terminated]] = 0.0
        if self.horizon is not None:
            goes_on[episodes.time >= self.horizon - 1] = 0.0
        offset, unit = self._level(goes_on)
        low, high = self.range(self.row_time)
        return Logged(
            observation=jnp.asarray(self.inputs(episodes.observation, self.row_time)),
            action=jnp.asarray(self.actions(episodes.action)),
            reward=jnp.asarray(episodes.reward, jnp.float32),
            before=jnp.asarray(episodes.observation_before, jnp.int32),
            goes_on=jnp.asarray(goes_on),
            low=jnp.asarray((low - offset) / unit, jnp.float32),
            high=jnp.asarray((high - offset) / unit, jnp.float32),
            weight=jnp.asarray(weight, jnp.float32),
            episode=jnp.asarray(episodes.episode_of_step, jnp.int32),
            unit=jnp.asarray(unit, jnp.float32),
            offset=jnp.asarray(offset, jnp.float32),
            discount=jnp.asarray(self.discount, jnp.float32),
        )

    def _level(self, goes_on: Float[np.ndarray, " steps"]) -> tuple[float, float]:
        """The mean and the spread of what was earned from logged steps on."""
        episodes, reward = self.episodes, self.episodes.reward.astype(np.float64)
        last = np.cumsum(episodes.length) - 1
        ahead = np.zeros(episodes.steps)
        # Where an episode was cut off, the average reward goes on for as long as the range allows.
        low, high = self.range(self.row_time[episodes.observation_before[last] + 1])
        mean = reward[self.usable].mean()
        ahead[last] = goes_on[last] * np.clip(mean * self._total(episodes.time[last] + 1), low, high)
        for back in range(int(episodes.length.max())):
            step = (last - back)[back < episodes.length]
            future = ahead[step] if back == 0 else goes_on[step] * ahead[step + 1]
            ahead[step] = reward[step] + self.discount * future
        ahead = ahead[self.usable]
        spread = max(float(ahead.std()), float(reward[self.usable].std()), 1e-6 * abs(float(ahead.mean())))
        return float(ahead.mean()), spread if spread > 0 else 1.0

    def _total(self, time: Int[np.ndarray, " rows"]) -> Float[np.ndarray, " rows"]:
        """The sum of discounts from a time on."""
        if self.horizon is None:
            return np.full(len(time), 1 / (1 - self.discount))
        left = np.maximum(self.horizon - time, 0).astype(np.float64)
        return left if self.discount == 1 else (1 - self.discount**left) / (1 - self.discount)
