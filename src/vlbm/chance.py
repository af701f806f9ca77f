"""What is random in imagined steps, drawn before the first of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from vlbm.models.base import World


class Chance(NamedTuple):
    """All that is random in a step, but for what policies draw themselves."""

    action: PRNGKeyArray
    world: Any  # episodes come first, but for worlds that only need a key
    ending: Float[Array, "*policies episodes"]

    def seated(self, seats: Int[Array, "policies seats"] | None) -> Chance:
        """What episodes meet where every policy has others; by default all policies have all of them."""
        if seats is None:
            return self
        taken = jax.tree.map(lambda leaf: leaf[seats] if leaf.ndim else leaf, (self.world, self.ending))
        return Chance(self.action, *taken)


def chance_of(world: World, episodes: int, key: PRNGKeyArray, time: Int[Array, ""]) -> Chance:
    """What the step at that time meets: it depends on the time alone, not on the steps before."""
    action_key, world_key, ending_key = step_keys(key, time)
    return Chance(
        action_key, world.luck(episodes, key=world_key), jax.random.uniform(ending_key, (episodes,))
    )


def step_keys(key: PRNGKeyArray, time: Int[Array, ""]) -> tuple[PRNGKeyArray, PRNGKeyArray, PRNGKeyArray]:
    """For the policies' actions, for the world, and for endings."""
    action_key, world_key, ending_key = jax.random.split(jax.random.fold_in(key, time), 3)
    return action_key, world_key, ending_key
