"""A random walk as logged episodes and as a world: a system whose predictions are known exactly."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from vlbm.data.episodes import Episodes, from_padded
from vlbm.data.scaler import Scaler
from vlbm.worlds.base import Imagination, Outcome, World


class Walk(World):
    """A random walk of two columns, one of which stands still; the reward is the place reached."""

    observation: Scaler
    reward: Scaler
    action: Scaler
    spread: float = eqx.field(static=True)
    imagination: Imagination = eqx.field(static=True)
    n_actions: int | None = eqx.field(static=True)
    terminates: bool = eqx.field(static=True)

    def draw_noise(self, key):
        return self.spread * jax.random.normal(key)

    def reset(self, observation, noise):
        return observation

    def reset_from_prior(self, key):
        raise NotImplementedError

    def step(self, state, action, noise):
        state = jnp.stack([state[0] + action[0] + noise, state[1]])
        return state, Outcome(state, state[0], jnp.zeros(()))


def walks(count: int, steps: int) -> Episodes:
    """Episodes of such a walk with a spread of one."""
    random = np.random.default_rng(0)
    action = random.normal(size=(count, steps, 1))
    moved = np.cumsum(action[..., 0] + random.normal(size=(count, steps)), axis=1)
    place = np.concatenate([np.zeros((count, 1)), moved], axis=1)
    return from_padded(
        observation=np.stack([place, np.full_like(place, 7.0)], axis=-1).astype(np.float32),
        action=action.astype(np.float32),
        reward=moved.astype(np.float32),
        length=np.full(count, steps),
        terminated=np.zeros(count, bool),
    )


def walk(logs: Episodes, spread: float = 1.0) -> Walk:
    scale = {"reward": Scaler.identity(1), "action": Scaler.identity(1)}
    return Walk(
        observation=Scaler.fit(logs.observation),
        spread=spread,
        imagination=Imagination(),
        n_actions=None,
        terminates=False,
        **scale,
    )
