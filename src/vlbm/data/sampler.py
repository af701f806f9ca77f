"""Sampler: random windows of logged episodes, from memory or from mapped files."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from vlbm.data.view import EpisodeView


class Window(eqx.Module):
    """Steps of one episode, or of many along a leading axis; values where `valid` is False are padding."""

    observation: Float[Array, "*batch steps+1 obs"]
    action: Float[Array, "*batch steps act"]  # discrete actions come as one-hot vectors
    reward: Float[Array, "*batch steps"]
    terminated: Float[Array, "*batch steps"]  # 1 at the last step of a terminated episode
    valid: Bool[Array, "*batch steps"]


class WindowStarts(NamedTuple):
    """First steps of a batch of windows."""

    episode: Int[Array, " batch"]  # index in the collection
    start: Int[Array, " batch"]


class EpisodeIndex(eqx.Module):
    """The episodes that may be sampled, and their lengths."""

    chosen: Int[Array, " chosen"]  # indices in the collection
    length: Int[Array, " chosen"]

    @classmethod
    def of(cls, log: EpisodeView) -> Self:
        return cls(jnp.asarray(log.chosen, jnp.int32), jnp.asarray(log.length, jnp.int32))

    def draw(self, key: PRNGKeyArray, *, batch: int, at_start: float) -> WindowStarts:
        """Random windows: a share `at_start` begins with any episode, the rest at any logged step.

        Windows may run past their episode's end, where steps are not valid. If they were shifted back to end
        there, terminations would occur at the last step of windows only, and the model would learn that.
        """
        place_key, begin_key, episode_key = jax.random.split(key, 3)
        ends = jnp.cumsum(self.length)
        place = jax.random.randint(place_key, (batch,), 0, ends[-1])
        row = jnp.searchsorted(ends, place, side="right")
        anywhere = WindowStarts(self.chosen[row], place - (ends - self.length)[row])
        begins = jax.random.uniform(begin_key, (batch,)) < at_start
        return jax.tree.map(
            partial(jnp.where, begins), self.draw_episodes(episode_key, batch=batch), anywhere
        )

    def draw_episodes(self, key: PRNGKeyArray, *, batch: int) -> WindowStarts:
        """Whole episodes, each equally likely."""
        row = jax.random.randint(key, (batch,), 0, len(self.chosen))
        return WindowStarts(self.chosen[row], jnp.zeros_like(row))


class Plan(NamedTuple):
    """How batches are drawn."""

    batch: int
    steps: int
    at_start: float = 0.0  # share of windows that start at the first step of an episode
    whole: bool = False  # windows are whole episodes, padded to `steps`

    def draw(self, index: EpisodeIndex, key: PRNGKeyArray) -> WindowStarts:
        if self.whole:
            return index.draw_episodes(key, batch=self.batch)
        return index.draw(key, batch=self.batch, at_start=self.at_start)


class Sampler(eqx.Module):
    """Samples windows from episodes that are on the device.

    An argument of compiled functions, never a constant in them. Samplers of equally many episodes of one
    collection have the same shapes, so models with other held-out episodes share compiled programs.
    """

    observation: Float[Array, "rows obs"]
    action: Float[Array, "rows act"] | Int[Array, " rows"]
    reward: Float[Array, " rows"]
    first_step: Int[Array, " episodes"]
    length: Int[Array, " episodes"]  # steps whose outcome is known: others teach nothing
    terminated: Bool[Array, " episodes"]
    index: EpisodeIndex
    n_actions: int | None = eqx.field(static=True)

    @classmethod
    def of(cls, log: EpisodeView) -> Self:
        episodes = log.collection
        return cls(
            observation=jnp.asarray(episodes.observation, jnp.float32),
            action=jnp.asarray(episodes.action, jnp.int32 if episodes.discrete else jnp.float32),
            reward=jnp.asarray(episodes.reward, jnp.float32),
            first_step=jnp.asarray(episodes.first_step, jnp.int32),
            length=jnp.asarray(episodes.known_length, jnp.int32),
            terminated=jnp.asarray(episodes.terminated),
            index=EpisodeIndex.of(log),
            n_actions=episodes.n_actions,
        )

    def draw(self, plan: Plan, key: PRNGKeyArray) -> Window:
        """A batch of windows."""
        return self.cut(plan.draw(self.index, key), steps=plan.steps)

    def cut(self, starts: WindowStarts, *, steps: int) -> Window:
        """The windows that begin there; rows beyond an episode's end repeat its last."""
        return jax.vmap(lambda episode, start: self._cut(episode, start, steps))(*starts)

    def _cut(self, episode: Int[Array, ""], start: Int[Array, ""], steps: int) -> Window:
        within, length = start + jnp.arange(steps), self.length[episode]
        row = self.first_step[episode] + jnp.minimum(within, length - 1)
        # Every episode before this one has one observation more than steps.
        seen = self.first_step[episode] + episode + jnp.minimum(start + jnp.arange(steps + 1), length)
        action = self.action[row]
        return Window(
            observation=self.observation[seen],
            action=action if self.n_actions is None else jax.nn.one_hot(action, self.n_actions),
            reward=self.reward[row],
            terminated=(self.terminated[episode] & (within == length - 1)).astype(jnp.float32),
            valid=within < length,
        )


class MappedSampler:
    """The windows that a `Sampler` would draw for the same keys, read from memory-mapped files.

    The windows of the next steps are prefetched in a thread.
    """

    def __init__(self, log: EpisodeView, plan: Plan):
        self._log, self._plan = log, plan
        self._index = EpisodeIndex.of(log)
        # One call draws the windows of several steps.
        self._draw = eqx.filter_jit(jax.vmap(plan.draw, in_axes=(None, 0)))
        self._reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="windows")
        self._prefetched: tuple[tuple[int, int], Future[Window]] | None = None  # (begin, count), windows

    def gather(self, keys: Callable[[int, int], PRNGKeyArray], *, begin: int, count: int) -> Window:
        """The batches of `count` steps from `begin`, stacked; `keys(begin, count)` are those of the steps."""
        if self._prefetched is not None and self._prefetched[0] == (begin, count):
            windows = self._prefetched[1].result()
        else:
            windows = self._gather(keys(begin, count))
        following = begin + count
        self._prefetched = (following, count), self._reader.submit(self._gather, keys(following, count))
        return windows

    def _gather(self, keys: PRNGKeyArray) -> Window:
        return cut_mapped(self._log, self._draw(self._index, keys), steps=self._plan.steps)


def cut_mapped(log: EpisodeView, starts: WindowStarts, *, steps: int) -> Window:
    """As `Sampler.cut`, on the host: only the rows that are needed are read."""
    episodes = log.collection
    episode, start = (np.asarray(part)[..., None] for part in starts)
    within, length = start + np.arange(steps), episodes.known_length[episode]
    row = episodes.first_step[episode] + np.minimum(within, length - 1)
    seen = episodes.first_observation[episode] + np.minimum(start + np.arange(steps + 1), length)
    terminated = episodes.terminated[episode] & (within == length - 1)
    return Window(
        observation=jnp.asarray(_read_rows(episodes.observation, seen)),
        action=jnp.asarray(log.action_vectors(row), jnp.float32),
        reward=jnp.asarray(_read_rows(episodes.reward, row)),
        terminated=jnp.asarray(terminated, jnp.float32),
        valid=jnp.asarray(within < length),
    )


def _read_rows(values: np.ndarray, row: Int[np.ndarray, "*rows"]) -> Float[np.ndarray, "*rows *columns"]:
    """Rows as float32; indexing a plain view avoids the overhead of np.memmap."""
    return values.view(np.ndarray)[row].astype(np.float32, copy=False)


def held_out_windows(log: EpisodeView, plan: Plan, *, seed: int) -> Window:
    """The same windows every time, for comparing models on logged episodes."""
    key = jax.random.key(seed)
    if not log.mapped:
        return eqx.filter_jit(Sampler.draw)(Sampler.of(log), plan, key)
    return cut_mapped(log, eqx.filter_jit(plan.draw)(EpisodeIndex.of(log), key), steps=plan.steps)
