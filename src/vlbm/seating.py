"""Seating: which imagined episodes are under way, and when it pays to leave the others behind."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int


class Seating(NamedTuple):
    """Some policies, and of each of them equally many episodes, by number."""

    policy: Int[np.ndarray, " some"]
    episode: Int[np.ndarray, "some seats"]

    @classmethod
    def everyone(cls, policies: int, episodes: int) -> Seating:
        return cls(np.arange(policies), np.tile(np.arange(episodes), (policies, 1)))

    @property
    def rows(self) -> Int[np.ndarray, "some 1"]:
        """Policies, to be taken together with their episodes."""
        return self.policy[:, None]

    def in_lots(self, lots: int, size: int) -> Int[np.ndarray, "lots some seats"]:
        """The episodes' numbers within their lots, of which each has so many."""
        parts = self.episode.reshape(len(self.policy), lots, -1).swapaxes(0, 1)
        return parts - size * np.arange(lots)[:, None, None]

    def among(self, chosen: Seating) -> Seating:
        """Those of these that were chosen, by the places they have here."""
        return Seating(self.policy[chosen.policy], self.episode[chosen.rows, chosen.episode])

    def remaining(self, ended: Bool[np.ndarray, "policies episodes"], *, lots: int) -> Seating:
        """The places of those that have not ended, by as few shapes as halving makes.

        Every lot of episodes keeps equally many, so that some that have ended stay where others go on.
        """
        gone = ended[self.rows, self.episode]
        going_on = np.flatnonzero(~gone.all(axis=1))
        whole = seats = gone.shape[1] // lots
        gone = gone[going_on].reshape(len(going_on), lots, whole)
        needed = int((~gone).sum(axis=-1).max(initial=1))
        while seats > 1 and (seats + 1) // 2 >= needed:
            seats = (seats + 1) // 2
        # Those that go on come first, and all keep their order.
        places = np.sort(np.argsort(gone, axis=-1, kind="stable")[..., :seats], axis=-1)
        first = whole * np.arange(lots)[:, None]
        return Seating(going_on, (first + places).reshape(len(going_on), lots * seats))
