"""Rewards and endings of imagined steps, on which nothing that follows depends: they come after the loop."""

from __future__ import annotations

from typing import Any

import jax
from jaxtyping import Array, Bool, Float, Int

from vlbm.chance import Chance
from vlbm.models.base import World

SETTLED = 256  # steps of all episodes together that are settled at once: what caches hold


def settled(
    world: World,
    remains: Any,
    chances: Chance,
    seats: Int[Array, "policies seats"] | None,
    *,
    episodes: int,
) -> tuple[Float[Array, "steps policies episodes"], Bool[Array, "steps policies episodes"]]:
    """What every step paid, and whether it ended its episode, for what `World.advance` left of many steps."""

    def settle(piece: tuple[Any, Chance]) -> tuple[Array, Array]:
        remains, chance = piece
        chance = jax.vmap(lambda step: step.seated(seats))(chance)
        reward, ending = world.settle(remains, chance.world)
        return reward, chance.ending.reshape(len(ending), -1, ending.shape[-1]) < ending

    steps = len(chances.ending)
    size = _piece(steps, episodes)
    pieces = jax.tree.map(lambda leaf: leaf.reshape(-1, size, *leaf.shape[1:]), (remains, chances))
    return jax.tree.map(lambda leaf: leaf.reshape(steps, *leaf.shape[2:]), jax.lax.map(settle, pieces))


def _piece(steps: int, episodes: int) -> int:
    """How many steps make a piece, so that all pieces are alike."""
    most = min(steps, max(SETTLED // episodes, 1))
    return max(size for size in range(1, most + 1) if steps % size == 0)
