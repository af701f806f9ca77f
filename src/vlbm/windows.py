"""Windows: stretches of episodes, gathered on the device and padded with a mask."""

from __future__ import annotations

from typing import Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from vlbm.episodes import Episodes


class Window(eqx.Module):
    """A batch of stretches, time first; where `valid` is False the numbers mean nothing."""

    observation: Float[Array, "steps+1 batch obs"]
    action: Float[Array, "steps batch act"]  # discrete actions come as one-hot vectors
    reward: Float[Array, "steps batch"]
    ended: Float[Array, "steps batch"]  # 1 where the system ended the episode after this step
    valid: Bool[Array, "steps batch"]

    @property
    def observed(self) -> Bool[Array, "steps+1 batch"]:
        """Which observations are real: the first one, and one after every valid step."""
        return jnp.concatenate([jnp.ones_like(self.valid[:1]), self.valid])


class WindowSource(eqx.Module):
    """Episodes on the device, ready to be cut; an argument of the compiled step, never a constant in it."""

    observation: Float[Array, "steps+episodes obs"]
    action: Float[Array, "steps act"] | Int[Array, " steps"]
    reward: Float[Array, " steps"]
    first_step: Int[Array, " episodes"]
    length: Int[Array, " episodes"]
    terminated: Bool[Array, " episodes"]
    episode_of_step: Int[Array, " steps"]
    choices: int | None = eqx.field(static=True)

    @classmethod
    def of(cls, episodes: Episodes) -> Self:
        return cls(
            observation=jnp.asarray(episodes.observation, jnp.float32),
            action=jnp.asarray(episodes.action, jnp.int32 if episodes.discrete else jnp.float32),
            reward=jnp.asarray(episodes.reward, jnp.float32),
            first_step=jnp.asarray(episodes.first_step, jnp.int32),
            length=jnp.asarray(episodes.length, jnp.int32),
            terminated=jnp.asarray(episodes.terminated),
            episode_of_step=jnp.asarray(episodes.episode_of_step, jnp.int32),
            choices=episodes.choices,
        )

    def draw(self, *, steps: int, batch: int, at_start: float, key: PRNGKeyArray) -> Window:
        """Random windows: a share `at_start` begins with an episode, the rest anywhere.

        A window that would run past its episode's end is moved back to end with it, so that the
        last step, where terminations are, is seen as often as any other.
        """
        # One draw of bits serves both choices: every separate draw adds seconds of compilation.
        bits = jax.lax.optimization_barrier(jax.random.bits(key, (2, batch), jnp.uint32))
        step_bits, start_bits = bits
        step = (step_bits % self.reward.shape[0]).astype(jnp.int32)
        episode = self.episode_of_step[step]
        within = jnp.minimum(step - self.first_step[episode], self.length[episode] - steps)
        begins = start_bits < np.uint32(min(at_start, 1.0) * (2**32 - 1))
        return self.cut(episode, jnp.where(begins, 0, jnp.maximum(within, 0)), steps=steps)

    def draw_episodes(self, *, steps: int, batch: int, key: PRNGKeyArray) -> Window:
        """Whole episodes, each equally likely, padded to `steps`."""
        episode = (jax.random.bits(key, (batch,), jnp.uint32) % self.length.shape[0]).astype(jnp.int32)
        return self.cut(episode, jnp.zeros_like(episode), steps=steps)

    def cut(self, episode: Int[Array, " batch"], start: Int[Array, " batch"], *, steps: int) -> Window:
        """The stretch of each named episode that begins at step `start`."""
        within = start + jnp.arange(steps)[:, None]
        length = self.length[episode]
        valid = within < length
        row = self.first_step[episode] + jnp.minimum(within, length - 1)
        seen = start + jnp.arange(steps + 1)[:, None]
        observation_row = self.first_step[episode] + episode + jnp.minimum(seen, length)
        action = self.action[row]
        if self.choices is not None:
            action = jax.nn.one_hot(action, self.choices)
        return Window(
            observation=self.observation[observation_row],
            action=action,
            reward=self.reward[row],
            ended=(self.terminated[episode] & (within == length - 1)).astype(jnp.float32),
            valid=valid,
        )


def held_out_windows(episodes: Episodes, *, steps: int, count: int, seed: int) -> Window:
    """The same windows every time, for comparing models on logged episodes."""
    source = WindowSource.of(episodes)
    key = jax.random.key(seed)
    return source.draw(steps=steps, batch=count, at_start=0.1, key=key)


def action_vectors(episodes: Episodes) -> Float[np.ndarray, "steps act"]:
    """Actions as a model sees them: discrete ones become one-hot vectors."""
    if episodes.choices is None:
        return episodes.action
    return np.eye(episodes.choices, dtype=np.float32)[episodes.action]
