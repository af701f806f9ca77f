"""The part of a value that is quadratic in observation and action: networks flatten it far from the data."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

LARGEST = 25  # inputs; of more there are too many products to solve for
REACH = 5.0  # deviations from the mean; what is farther counts as this far


class Quadratic(eqx.Module):
    """x' matrix x for every network, where x holds an observation, an action vector and a one."""

    matrix: Float[Array, "copies policies inputs+1 inputs+1"]

    def __init__(self, *, copies: int, policies: int, inputs: int):
        self.matrix = jnp.zeros((copies, policies, inputs + 1, inputs + 1))

    def __call__(
        self,
        observation: Float[Array, "batch obs"],
        action: Float[Array, "batch act"] | Float[Array, "batch policies act"],
    ) -> Float[Array, "copies policies batch"]:
        known = _known(observation, action)
        if action.ndim == 2:  # the same for all policies: one product
            bent = jnp.einsum("bi,cpij->cpbj", known[0], self.matrix)
        else:
            bent = jnp.einsum("pbi,cpij->cpbj", known, self.matrix)
        return (bent * known).sum(axis=-1)

    def products(
        self,
        observation: Float[Array, "batch obs"],
        action: Float[Array, "batch act"] | Float[Array, "batch policies act"],
    ) -> Float[Array, "#policies batch products"]:
        """All products of two inputs and the inputs themselves: what the matrix is multiplied with."""
        known = _known(observation, action)
        rows, columns = self._pairs
        return known[..., rows] * known[..., columns]

    @property
    def size(self) -> int:
        return len(self._pairs[0])

    def moved(self, by: Float[Array, "copies policies products"]) -> Quadratic:
        rows, columns = self._pairs
        return eqx.tree_at(lambda part: part.matrix, self, self.matrix.at[:, :, rows, columns].add(by))

    @property
    def _pairs(self) -> tuple[np.ndarray, np.ndarray]:
        rows, columns = np.triu_indices(self.matrix.shape[-1])
        return rows[:-1], columns[:-1]  # without the last, the constant: networks have their own


def _known(observation: Array, action: Array) -> Float[Array, "#policies batch inputs+1"]:
    acted = action[None] if action.ndim == 2 else jnp.swapaxes(action, 0, 1)
    seen = jnp.broadcast_to(observation, (len(acted), *observation.shape))
    both = jnp.clip(jnp.concatenate([seen, acted], axis=-1), -REACH, REACH)
    return jnp.concatenate([both, jnp.ones_like(both[..., :1])], axis=-1)
