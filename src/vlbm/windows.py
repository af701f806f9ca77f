"""Windows: stretches of episodes, gathered on the device and padded with a mask."""

from __future__ import annotations

from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from vlbm.drawing import Layout, round_size
from vlbm.episodes import Episodes
from vlbm.selection import Selection, Stretch


class Window(eqx.Module):
    """A batch of stretches, time first; where `valid` is False the numbers mean nothing."""

    observation: Float[Array, "steps+1 batch obs"]
    action: Float[Array, "steps batch act"]  # discrete actions come as one-hot vectors
    reward: Float[Array, "steps batch"]
    ended: Float[Array, "steps batch"]  # 1 where the system ended the episode after this step
    valid: Bool[Array, "steps batch"]

    @classmethod
    def of(cls, stretch: Stretch) -> Self:
        """Put on the device what was gathered on the host."""
        return cls(*(jnp.asarray(part) for part in stretch))

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
    terminated: Bool[Array, " places"]
    layout: Layout
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
            terminated=filled(episodes.terminated, places, np.bool_),
            layout=Layout.of(episodes),
            choices=episodes.choices,
        )

    def draw(self, *, steps: int, batch: int, at_start: float, key: PRNGKeyArray) -> Window:
        """Random windows, drawn as `Layout.draw` says."""
        place = self.layout.draw(steps=steps, batch=batch, at_start=at_start, key=key)
        return self.cut(*place, steps=steps)

    def draw_episodes(self, *, steps: int, batch: int, key: PRNGKeyArray) -> Window:
        """Whole episodes, each equally likely, padded to `steps`."""
        return self.cut(*self.layout.draw_episodes(steps=steps, batch=batch, key=key), steps=steps)

    def cut(self, episode: Int[Array, " batch"], start: Int[Array, " batch"], *, steps: int) -> Window:
        """The stretch of each named episode that begins at step `start`."""
        within = start + jnp.arange(steps)[:, None]
        length = self.layout.length[episode]
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


def held_out_windows(episodes: Episodes | Selection, *, steps: int, count: int, seed: int) -> Window:
    """The same windows every time, for comparing models on logged episodes."""
    log = Selection.of(episodes)
    drawn: dict[str, Any] = {"steps": steps, "batch": count, "at_start": 0.1}
    key = jax.random.key(seed)
    # Compiled as one: by itself every operation is a program of its own.
    if not log.mapped:
        return eqx.filter_jit(WindowSource.draw)(WindowSource.of(log.gathered()), **drawn, key=key)
    place = eqx.filter_jit(Layout.draw)(Layout.of(log), **drawn, key=key)
    return Window.of(log.cut(*map(np.asarray, place), steps=steps))
