"""Many policies at once: those written in JAX act inside compiled loops, stacked by shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding
from jaxtyping import Array, Float, PRNGKeyArray, Shaped

from vlbm.policies.base import TracedPolicy

Actions = Literal["mean", "sample"]


class Crowd(eqx.Module):
    """Policies stacked by shape, so that those of one shape act in one product."""

    groups: tuple[TracedPolicy, ...]
    members: tuple[tuple[int, ...], ...] = eqx.field(static=True)

    @classmethod
    def of(cls, policies: Sequence[TracedPolicy], where: Sharding | None = None) -> Crowd:
        shapes: dict[Any, list[int]] = {}
        for index, policy in enumerate(policies):
            leaves, structure = jax.tree.flatten(policy)
            shapes.setdefault((structure, *(np.shape(leaf) for leaf in leaves)), []).append(index)
        members = tuple(tuple(indices) for indices in shapes.values())
        groups = tuple(
            jax.tree.map(lambda *leaves: np.stack(leaves), *(policies[index] for index in indices)).ready()
            for indices in members
        )
        # All in one call: each takes its time.
        return cls(jax.device_put(groups, where), members)

    def act(
        self, observation: Float[Array, "policies episodes obs"], *, actions: Actions, key: PRNGKeyArray
    ) -> Shaped[Array, "policies episodes *act"]:
        parts = []
        for group, indices in zip(self.groups, self.members, strict=True):
            seen = observation[np.array(indices)]
            if actions == "mean":
                parts.append(jax.vmap(lambda policy, seen: policy.mean(seen))(group, seen))
            else:
                # One key for all: policies differ by what they do, not by their luck.
                parts.append(jax.vmap(lambda policy, seen: policy.sample(seen, key=key))(group, seen))
        order = np.argsort(np.concatenate([np.array(indices) for indices in self.members]))
        return jnp.concatenate(parts)[order]
