"""Many policies at once: those written in JAX are stacked by shape, so that one compiled loop serves all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, Shaped

from vlbm.estimand import Actions
from vlbm.policies.base import TracedPolicy


class StackedPolicies(eqx.Module):
    """Policies in groups of one shape, each group one policy with a leading axis."""

    groups: tuple[TracedPolicy, ...]
    members: tuple[tuple[int, ...], ...] = eqx.field(static=True)

    @classmethod
    def of(cls, policies: Sequence[TracedPolicy]) -> StackedPolicies:
        shapes: dict[Any, list[int]] = {}
        for index, policy in enumerate(policies):
            leaves, structure = jax.tree.flatten(policy)
            shapes.setdefault((structure, *(np.shape(leaf) for leaf in leaves)), []).append(index)
        members = tuple(tuple(indices) for indices in shapes.values())
        groups = tuple(
            jax.tree.map(lambda *leaves: jnp.stack(leaves), *(policies[index] for index in indices))
            for indices in members
        )
        return cls(groups, members)

    def act(
        self, observation: Float[Array, "policies batch obs"], *, actions: Actions, key: PRNGKeyArray
    ) -> Shaped[Array, "policies batch *act"]:
        parts = []
        for group, indices in zip(self.groups, self.members, strict=True):
            seen = observation[np.array(indices)]
            if actions == "mean":
                parts.append(jax.vmap(lambda policy, seen: policy.mean(seen))(group, seen))
            else:
                # Common random numbers: the same key for all policies.
                parts.append(jax.vmap(lambda policy, seen: policy.sample(seen, key=key))(group, seen))
        order = np.argsort(np.concatenate([np.array(indices) for indices in self.members]))
        return jnp.concatenate(parts)[order]


def act_once(
    policy: TracedPolicy, observation: Float[Array, " obs"], actions: Actions, key: PRNGKeyArray
) -> Shaped[Array, "*act"]:
    """The action of one policy at one observation."""
    seen = observation[None]
    return (policy.mean(seen) if actions == "mean" else policy.sample(seen, key=key))[0]
