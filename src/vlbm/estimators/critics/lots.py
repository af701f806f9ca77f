"""Lots of policies: every device has the critics of its own, and they never meet."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float, Int

from vlbm.estimators.critics.bellman import Logged, Shape
from vlbm.parallel import REPLICATED, make_sharding, put_on, split_along

# The axes of all that belongs to policies: copies or places first, then policies.
SEATS = split_along(1)
BUDGET = 1 << 32  # bytes; every device has the log, and all of them together hold no more than this of it


class Asked(NamedTuple):
    """What policies do: a table, and where in it those stand that were asked for."""

    table: Float[Array, "places policies*act"]
    place: Int[Array, "*batch"]

    @property
    def found(self) -> Float[Array, "*batch policies*act"]:
        return self.table[self.place]


ASKED = Asked(SEATS, REPLICATED)  # type: ignore[arg-type]  # where its parts are


def lots_for(policies: int, logged: Logged) -> tuple[int, int]:
    """Over how many devices policies are spread, and how many seats are empty, for all get as many."""
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(logged))
    devices = max(min(len(jax.local_devices()), BUDGET // size), 1)
    each = -(-policies // devices)
    lots = -(-policies // each)
    return lots, lots * each - policies


def seated(tree: Any, shape: Shape) -> Any:
    """Every array where the policies are that it belongs to."""
    return put_on(jax.tree.map(np.asarray, tree), make_sharding(shape.lots, SEATS))
