"""A linear system with Gaussian noise and quadratic costs: values in closed form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from scipy.linalg import solve_discrete_lyapunov

from vlbm.data.episodes import Episodes
from vlbm.errors import InputError
from vlbm.policies.base import TracedPolicy
from vlbm.suites.exact.base import ActionFunction, StateFunction, check_discount


class LinearGaussianPolicy(TracedPolicy):
    """action = gain @ observation + offset + scale * noise."""

    gain: Float[np.ndarray, "act obs"]
    offset: Float[np.ndarray, " act"]
    scale: Float[np.ndarray, " act"]

    def __init__(self, gain: np.ndarray, offset: np.ndarray, scale: np.ndarray):
        # In double precision, so that values computed from them are exact.
        self.gain, self.offset, self.scale = (np.asarray(part, np.float64) for part in (gain, offset, scale))

    @property
    def observation_size(self) -> int:
        return self.gain.shape[-1]

    @property
    def action_size(self) -> int:
        return self.gain.shape[-2]

    @property
    def discrete(self) -> bool:
        return False

    def mean(self, observation: Float[Array, "batch obs"]) -> Float[Array, "batch act"]:
        return jnp.asarray(observation) @ jnp.asarray(self.gain).T + jnp.asarray(self.offset)

    def sample(
        self, observation: Float[Array, "batch obs"], *, key: PRNGKeyArray
    ) -> Float[Array, "batch act"]:
        mean = self.mean(observation)
        return mean + jnp.asarray(self.scale) * jax.random.normal(key, mean.shape, mean.dtype)

    def log_prob(
        self, observation: Float[Array, "batch obs"], action: Float[Array, "batch act"]
    ) -> Float[Array, " batch"]:
        density = jax.scipy.stats.norm.logpdf(
            jnp.asarray(action), self.mean(observation), jnp.asarray(self.scale)
        )
        return density.sum(axis=-1)


class Cost(NamedTuple):
    """x' square x + 2 linear' x + constant, for every time of an episode: the cost-to-go."""

    square: Float[np.ndarray, "times obs obs"]
    linear: Float[np.ndarray, "times obs"]
    constant: Float[np.ndarray, " times"]

    def __call__(self, x: Float[np.ndarray, "batch obs"], time: np.ndarray) -> Float[np.ndarray, " batch"]:
        square, linear, constant = (part[np.minimum(time, len(part) - 1)] for part in self)
        return _quadratic_form(square, x) + 2 * (linear * x).sum(axis=-1) + constant


@dataclass(frozen=True, eq=False)
class LinearSystem:
    """x' = drift x + drive u + noise; a step pays -(x' state_cost x + u' action_cost u)."""

    drift: Float[np.ndarray, "obs obs"]
    drive: Float[np.ndarray, "obs act"]
    noise: Float[np.ndarray, "obs obs"]  # covariance
    state_cost: Float[np.ndarray, "obs obs"]
    action_cost: Float[np.ndarray, "act act"]
    initial_mean: Float[np.ndarray, " obs"]
    initial_covariance: Float[np.ndarray, "obs obs"]
    behaviour: LinearGaussianPolicy
    targets: Mapping[str, LinearGaussianPolicy] = field(default_factory=dict)
    discount: float = 0.95
    horizon: int = 10
    name: str = "linear"

    def sample(
        self, policy: LinearGaussianPolicy, *, episodes: int, seed: int, horizon: int | None = None
    ) -> Episodes:
        horizon = self.horizon if horizon is None else horizon
        generator = np.random.default_rng(seed)
        size, actions = self.drive.shape
        state = generator.multivariate_normal(self.initial_mean, self.initial_covariance, size=episodes)
        action_noise = generator.normal(size=(horizon, episodes, actions))
        shocks = generator.multivariate_normal(np.zeros(size), self.noise, size=(horizon, episodes))
        states, taken, rewards = [state], [], []
        for time in range(horizon):
            action = state @ policy.gain.T + policy.offset + policy.scale * action_noise[time]
            rewards.append(
                -_quadratic_form(self.state_cost, state) - _quadratic_form(self.action_cost, action)
            )
            state = state @ self.drift.T + action @ self.drive.T + shocks[time]
            states.append(state)
            taken.append(action)
        density = -0.5 * (action_noise**2 + np.log(2 * np.pi)) - np.log(policy.scale)
        return Episodes(
            observation=np.stack(states, axis=1).reshape(-1, size).astype(np.float32),
            action=np.stack(taken, axis=1).reshape(-1, actions).astype(np.float32),
            reward=np.stack(rewards, axis=1).reshape(-1).astype(np.float32),
            length=np.full(episodes, horizon),
            terminated=np.zeros(episodes, bool),
            log_prob=density.sum(axis=-1).T.reshape(-1),
        )

    def cost(self, policy: LinearGaussianPolicy, *, discount: float, horizon: int | None) -> Cost:
        """The cost-to-go at every time of an episode; one row for an infinite horizon."""
        check_discount(discount=discount, horizon=horizon)
        gain, offset = policy.gain, policy.offset
        closed, push = self.drift + self.drive @ gain, self.drive @ offset
        spread = np.diag(policy.scale**2)
        shock = self.drive @ spread @ self.drive.T + self.noise
        square_now = self.state_cost + gain.T @ self.action_cost @ gain
        linear_now = gain.T @ self.action_cost @ offset
        constant_now = _quadratic_form(self.action_cost, offset) + np.trace(self.action_cost @ spread)
        if horizon is None:
            if discount == 1 or discount * np.abs(np.linalg.eigvals(closed)).max() ** 2 >= 1:
                raise InputError("horizon: without one this policy's costs are infinite; give a horizon")
            square = solve_discrete_lyapunov(np.sqrt(discount) * closed.T, square_now)
            linear = np.linalg.solve(
                np.eye(len(closed)) - discount * closed.T, linear_now + discount * closed.T @ square @ push
            )
            ahead = _quadratic_form(square, push) + np.trace(square @ shock) + 2 * linear @ push
            constant = (constant_now + discount * ahead) / (1 - discount)
            return Cost(square[None], linear[None], np.array([constant]))
        square, linear, constant = np.zeros_like(square_now), np.zeros_like(linear_now), 0.0
        rows = []
        for _ in range(horizon):
            ahead = _quadratic_form(square, push) + np.trace(square @ shock) + 2 * linear @ push + constant
            constant = constant_now + discount * ahead
            linear = linear_now + discount * closed.T @ (square @ push + linear)
            square = square_now + discount * closed.T @ square @ closed
            rows.append((square, linear, constant))
        # The recursion runs from the last step to the first.
        return Cost(*(np.stack(parts) for parts in zip(*rows[::-1], strict=True)))

    def value(self, policy: LinearGaussianPolicy, *, discount: float, horizon: int | None) -> float:
        cost = self.cost(policy, discount=discount, horizon=horizon)
        at_mean = cost(self.initial_mean[None], np.zeros(1, int))[0]
        return float(-at_mean - np.trace(cost.square[0] @ self.initial_covariance))

    def state_function(
        self, policy: LinearGaussianPolicy, *, discount: float, horizon: int | None
    ) -> StateFunction:
        cost = self.cost(policy, discount=discount, horizon=horizon)
        return lambda observation, time: -cost(np.asarray(observation, np.float64), time)

    def action_function(
        self, policy: LinearGaussianPolicy, *, discount: float, horizon: int | None
    ) -> ActionFunction:
        cost = self.cost(policy, discount=discount, horizon=horizon)
        if horizon is not None:  # after the last step nothing is paid
            cost = Cost(*(np.concatenate([part[1:], np.zeros_like(part[:1])]) for part in cost))

        def function(observation: np.ndarray, action: np.ndarray, time: np.ndarray) -> np.ndarray:
            x, u = np.asarray(observation, np.float64), np.asarray(action, np.float64)
            now = _quadratic_form(self.state_cost, x) + _quadratic_form(self.action_cost, u)
            square = cost.square[np.minimum(time, len(cost.square) - 1)]
            shock = (square * self.noise).sum(axis=(-2, -1))
            return -now - discount * (cost(x @ self.drift.T + u @ self.drive.T, time) + shock)

        return function


def linear(*, horizon: int = 10, discount: float = 0.95) -> LinearSystem:
    """A position with a velocity, pushed towards zero."""

    def linear_policy(stiffness: float, *, offset: float = 0.0, scale: float = 0.5) -> LinearGaussianPolicy:
        return LinearGaussianPolicy(
            np.array([[-stiffness, -stiffness]]), np.array([offset]), np.array([scale])
        )

    return LinearSystem(
        drift=np.array([[1.0, 0.3], [0.0, 0.9]]),
        drive=np.array([[0.0], [0.5]]),
        noise=np.diag([0.02, 0.05]),
        state_cost=np.diag([1.0, 0.2]),
        action_cost=np.array([[0.1]]),
        initial_mean=np.array([1.0, 0.0]),
        initial_covariance=np.diag([0.1, 0.1]),
        behaviour=linear_policy(0.3),
        targets={
            "gentle": linear_policy(0.22, scale=0.45),
            "firm": linear_policy(0.45, scale=0.45),
            "shifted": linear_policy(0.3, offset=-0.1, scale=0.4),
        },
        discount=discount,
        horizon=horizon,
    )


def _quadratic_form(square: np.ndarray, vector: np.ndarray) -> np.ndarray:
    return ((square @ vector[..., None])[..., 0] * vector).sum(axis=-1)
