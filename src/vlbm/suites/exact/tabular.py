"""Systems with countably many states: values by linear solve or dynamic programming."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from vlbm.data.episodes import Episodes
from vlbm.errors import InputError
from vlbm.policies.base import TracedPolicy
from vlbm.suites.exact.base import ActionFunction, StateFunction, check_discount

# How far a row of probabilities may be from summing to one.
ROUNDING = 1e-9


class TabularPolicy(TracedPolicy):
    """Action probabilities for every state; the state is read off a one-hot observation.

    The table is kept in double precision, so that values computed from it are exact; what is traced
    has JAX's precision. The largest entry is the state, so imagined observations, which are not
    exactly one-hot, work too.
    """

    probability: Float[np.ndarray, "states actions"]

    def __init__(self, probability: Float[np.ndarray, "states actions"]):
        table = np.asarray(probability, np.float64)
        if (table < 0).any() or (np.abs(table.sum(axis=-1) - 1) > ROUNDING).any():
            raise InputError("probability: every row must hold probabilities that sum to 1")
        self.probability = table

    @property
    def observation_size(self) -> int:
        return self.probability.shape[-2]

    @property
    def action_size(self) -> int:
        return self.probability.shape[-1]

    @property
    def discrete(self) -> bool:
        return True

    def mean(self, observation: Float[Array, "batch obs"]) -> Int[Array, " batch"]:
        return jnp.argmax(self._log_probs(observation), axis=-1).astype(jnp.int32)

    def sample(self, observation: Float[Array, "batch obs"], *, key: PRNGKeyArray) -> Int[Array, " batch"]:
        return jax.random.categorical(key, self._log_probs(observation)).astype(jnp.int32)

    def log_prob(
        self, observation: Float[Array, "batch obs"], action: Int[Array, " batch"]
    ) -> Float[Array, " batch"]:
        chosen = jnp.asarray(action)[..., None]
        return jnp.take_along_axis(self._log_probs(observation), chosen, axis=-1)[..., 0]

    def _log_probs(self, observation: Float[Array, "batch obs"]) -> Float[Array, "batch actions"]:
        return jnp.log(jnp.asarray(self.probability))[jnp.argmax(jnp.asarray(observation), axis=-1)]


@dataclass(frozen=True, eq=False)
class TabularSystem:
    """A Markov decision process given by its tables; entering a terminal state ends an episode.

    Observations are one-hot vectors, actions are ids. `reward` may have axes of length 1 where it
    does not depend on the state, the action or the next state.
    """

    name: str
    transition: Float[np.ndarray, "states actions states"]
    reward: Float[np.ndarray, "#states #actions #states"]
    initial: Float[np.ndarray, " states"]
    terminal: Bool[np.ndarray, " states"]
    behaviour: TabularPolicy
    targets: Mapping[str, TabularPolicy]
    discount: float
    horizon: int

    @property
    def states(self) -> int:
        return self.transition.shape[0]

    @property
    def actions(self) -> int:
        return self.transition.shape[1]

    def sample(
        self, policy: TabularPolicy, *, episodes: int, seed: int, horizon: int | None = None
    ) -> Episodes:
        horizon = self.horizon if horizon is None else horizon
        generator = np.random.default_rng(seed)
        choice = _cumulate(policy.probability)
        reward = np.broadcast_to(self.reward, self.transition.shape)
        state = _draw_outcomes(_cumulate(self.initial)[None].repeat(episodes, axis=0), generator)
        visited = np.full((episodes, horizon + 1), -1)
        visited[:, 0] = state
        taken = np.zeros((episodes, horizon), np.int64)
        alive = np.arange(episodes)
        for time in range(horizon):
            here = visited[alive, time]
            action = _draw_outcomes(choice[here], generator)
            following = _draw_outcomes(self._cumulative_transition[here, action], generator)
            taken[alive, time] = action
            visited[alive, time + 1] = following
            alive = alive[~self.terminal[following]]
            if not len(alive):
                break
        length = (visited >= 0).sum(axis=1) - 1
        step = np.arange(horizon) < length[:, None]
        before, action, after = visited[:, :-1][step], taken[step], visited[:, 1:][step]
        return Episodes(
            observation=np.eye(self.states, dtype=np.float32)[visited[visited >= 0]],
            action=action.astype(np.int32),
            reward=reward[before, action, after].astype(np.float32),
            length=length,
            terminated=self.terminal[visited[np.arange(episodes), length]],
            log_prob=np.log(policy.probability[before, action]),
            n_actions=self.actions,
        )

    def state_values(
        self, policy: TabularPolicy, *, discount: float, horizon: int | None
    ) -> Float[np.ndarray, "times states"]:
        """V at every time of an episode; one row where the horizon is infinite."""
        check_discount(discount=discount, horizon=horizon)
        reward = (policy.probability * self._expected_reward).sum(axis=-1)
        transition = np.einsum("sa,sat->st", policy.probability, self.transition)
        running = np.where(self.terminal, 0.0, 1.0)
        reward, transition = reward * running, transition * running[:, None] * running
        if horizon is None:
            return np.linalg.solve(np.eye(self.states) - discount * transition, reward)[None]
        values = np.zeros((horizon + 1, self.states))
        for time in range(horizon - 1, -1, -1):
            values[time] = reward + discount * transition @ values[time + 1]
        return values[:horizon]

    def action_values(
        self, policy: TabularPolicy, *, discount: float, horizon: int | None
    ) -> Float[np.ndarray, "times states actions"]:
        """Q at every time of an episode; one row where the horizon is infinite."""
        values = self.state_values(policy, discount=discount, horizon=horizon)
        following = values if horizon is None else np.concatenate([values[1:], np.zeros((1, self.states))])
        ahead = np.einsum("sat,ht->hsa", self.transition, np.where(self.terminal, 0.0, following))
        return np.where(self.terminal[:, None], 0.0, self._expected_reward + discount * ahead)

    def value(self, policy: TabularPolicy, *, discount: float, horizon: int | None) -> float:
        return float(self.initial @ self.state_values(policy, discount=discount, horizon=horizon)[0])

    def state_function(self, policy: TabularPolicy, *, discount: float, horizon: int | None) -> StateFunction:
        table = self.state_values(policy, discount=discount, horizon=horizon)
        return lambda observation, time: table[np.minimum(time, len(table) - 1), observation.argmax(axis=-1)]

    def action_function(
        self, policy: TabularPolicy, *, discount: float, horizon: int | None
    ) -> ActionFunction:
        table = self.action_values(policy, discount=discount, horizon=horizon)
        return lambda observation, action, time: table[
            np.minimum(time, len(table) - 1), observation.argmax(axis=-1), action
        ]

    @cached_property
    def _expected_reward(self) -> Float[np.ndarray, "states actions"]:
        return np.einsum("sat,sat->sa", self.transition, np.broadcast_to(self.reward, self.transition.shape))

    @cached_property
    def _cumulative_transition(self) -> Float[np.ndarray, "states actions states"]:
        return _cumulate(self.transition)


def _cumulate(probability: Float[np.ndarray, "*rows outcomes"]) -> Float[np.ndarray, "*rows outcomes"]:
    total = probability.cumsum(axis=-1)
    # Normalised so that the last entry is exactly 1.
    return total / total[..., -1:]


def _draw_outcomes(
    cumulated: Float[np.ndarray, "batch outcomes"], generator: np.random.Generator
) -> Int[np.ndarray, " batch"]:
    return (cumulated <= generator.random(len(cumulated))[:, None]).sum(axis=-1)
