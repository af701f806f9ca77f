"""EpisodeView: a subset of a collection of episodes, read in blocks and never copied as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from vlbm.data.episodes import Episodes, split_indices

BLOCK_ROWS = 65_536  # rows per block


class Steps(NamedTuple):
    """Rows of some steps in the collection."""

    row: Int[np.ndarray, " rows"]  # of the action and the reward
    before: Int[np.ndarray, " rows"]  # of the observation before the action; the next row is the one after it


@dataclass(frozen=True, eq=False)
class EpisodeView:
    """A subset of a collection that may be larger than memory, as models learn from it.

    A last step whose outcome was not observed is left out, and so is an episode of nothing else.
    """

    collection: Episodes
    chosen: Int[np.ndarray, " episodes"]

    @classmethod
    def of(cls, episodes: Episodes | EpisodeView) -> EpisodeView:
        """A view of all episodes that have something to learn from."""
        if isinstance(episodes, EpisodeView):
            return episodes
        return cls(episodes, np.flatnonzero(episodes.known_length))

    @property
    def count(self) -> int:
        return len(self.chosen)

    @cached_property
    def length(self) -> Int[np.ndarray, " episodes"]:
        return self.collection.known_length[self.chosen]

    @cached_property
    def steps(self) -> int:
        return int(self.length.sum())

    @cached_property
    def terminated(self) -> Bool[np.ndarray, " episodes"]:
        return self.collection.terminated[self.chosen]

    @property
    def observation_size(self) -> int:
        return self.collection.observation_size

    @property
    def action_size(self) -> int:
        return self.collection.action_size

    @property
    def n_actions(self) -> int | None:
        return self.collection.n_actions

    @property
    def discrete(self) -> bool:
        return self.collection.discrete

    @property
    def mapped(self) -> bool:
        return self.collection.mapped

    def split(self, fraction: float, *, seed: int) -> tuple[EpisodeView, EpisodeView]:
        """The same two parts as those of `Episodes.split`."""
        return tuple(  # type: ignore[return-value]
            EpisodeView(self.collection, self.chosen[part])
            for part in split_indices(self.count, fraction, seed=seed)
        )

    def to_episodes(self) -> Episodes:
        """The chosen episodes in memory."""
        if np.array_equal(self.chosen, np.arange(self.collection.count)):
            return self.collection
        return self.collection.select(self.chosen)

    def observations(self) -> Iterator[Float[np.ndarray, "rows obs"]]:
        """All observations in order, a block at a time."""
        for episode, within in _iterate_blocks(self.length + 1):
            yield _as_ndarray(self.collection.observation)[self._first_observation[episode] + within]

    def blocks(self) -> Iterator[Steps]:
        """All steps in order, a block at a time."""
        for episode, within in _iterate_blocks(self.length):
            yield Steps(self._first_step[episode] + within, self._first_observation[episode] + within)

    def actions(self) -> Iterator[Float[np.ndarray, "rows act"]]:
        """All actions in order as vectors, discrete ones one-hot, a block at a time."""
        for steps in self.blocks():
            yield self.action_vectors(steps.row)

    def rewards(self) -> Iterator[Float[np.ndarray, "rows 1"]]:
        """All rewards in order, a block at a time."""
        for steps in self.blocks():
            yield _as_ndarray(self.collection.reward)[steps.row][:, None]

    @cached_property
    def _first_step(self) -> Int[np.ndarray, " episodes"]:
        return self.collection.first_step[self.chosen]

    @cached_property
    def _first_observation(self) -> Int[np.ndarray, " episodes"]:
        return self.collection.first_observation[self.chosen]

    def action_vectors(self, row: Int[np.ndarray, "*rows"]) -> Float[np.ndarray, "*rows act"]:
        action = _as_ndarray(self.collection.action)[row]
        return action if self.n_actions is None else np.eye(self.n_actions, dtype=np.float32)[action]


def _iterate_blocks(length: Int[np.ndarray, " episodes"]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The episode of each row and the position in it, a block of rows at a time."""
    upto = np.cumsum(length)
    for begin in range(0, int(upto[-1]), BLOCK_ROWS):
        row = np.arange(begin, min(begin + BLOCK_ROWS, int(upto[-1])))
        episode = np.searchsorted(upto, row, side="right")
        yield episode, row - (upto - length)[episode]


def _as_ndarray(values: np.ndarray) -> np.ndarray:
    """The same memory as a plain array: indexing np.memmap is slow."""
    return values.view(np.ndarray)
