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
    """Episodes on the device, ready to be cut; an argument of the compiled step, never a constant in it.

    Arrays are filled up to a round size, so that data of nearly the same size share compiled programs.
    """

    observation: Float[Array, "rows obs"]
    action: Float[Array, "rows act"] | Int[Array, " rows"]
    reward: Float[Array, " rows"]
    first_step: Int[Array, " places"]
    length: Int[Array, " places"]  # 0 where there is no episode
    terminated: Bool[Array, " places"]
    count: Int[Array, ""]  # of episodes
    choices: int | None = eqx.field(static=True)

    @classmethod
    def of(cls, episodes: Episodes) -> Self:
        places = round_size(episodes.count)
        rows = round_size(episodes.steps + places)

        def filled(values: np.ndarray, size: int, dtype: type) -> Array:
            out = np.zeros((size, *values.shape[1:]), dtype)
            out[: len(values)] = values
            return jax.device_put(out)

        return cls(
            observation=filled(episodes.observation, rows, np.float32),
            action=filled(episodes.action, rows, np.int32 if episodes.discrete else np.float32),
            reward=filled(episodes.reward, rows, np.float32),
            first_step=filled(episodes.first_step, places, np.int32),
            length=filled(episodes.length, places, np.int32),
            terminated=filled(episodes.terminated, places, np.bool_),
            count=jnp.asarray(episodes.count, jnp.int32),
            choices=episodes.choices,
        )

    def draw(self, *, steps: int, batch: int, at_start: float, key: PRNGKeyArray) -> Window:
        """Random windows: a share `at_start` begins with an episode, the rest anywhere.

        A window that would run past its episode's end is moved back to end with it, so that the
        last step, where terminations are, is seen as often as any other. An episode shorter than a
        window is drawn as if it were as long as one: its few steps then count as much as others do.
        """
        # One draw of bits serves both choices: every separate draw adds seconds of compilation.
        bits = jax.lax.optimization_barrier(jax.random.bits(key, (2, batch), jnp.uint32))
        place_bits, start_bits = bits
        room = jnp.where(self.length > 0, jnp.maximum(self.length, steps), 0)
        upto = jnp.cumsum(room)
        place = (place_bits % upto[-1].astype(jnp.uint32)).astype(jnp.int32)
        episode = jnp.searchsorted(upto, place, side="right")
        within = jnp.minimum(place - (upto - room)[episode], self.length[episode] - steps)
        begins = start_bits < np.uint32(min(at_start, 1.0) * (2**32 - 1))
        return self.cut(episode, jnp.where(begins, 0, jnp.maximum(within, 0)), steps=steps)

    def draw_episodes(self, *, steps: int, batch: int, key: PRNGKeyArray) -> Window:
        """Whole episodes, each equally likely, padded to `steps`."""
        bits = jax.random.bits(key, (batch,), jnp.uint32)
        episode = (bits % self.count.astype(jnp.uint32)).astype(jnp.int32)
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


def round_size(count: int) -> int:
    """The next number with at most four leading binary digits that are not zero: at most an eighth more."""
    step = 1 << max(count.bit_length() - 4, 0)
    return -(-count // step) * step


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
