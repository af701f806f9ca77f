"""The part of a value that is quadratic in observation and action: networks flatten it far from the data."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

LARGEST = 25  # inputs; of more there are too many products to solve for
REACH = 5.0  # deviations from the mean; what is farther counts as this far


class Quadratic(eqx.Module):
    """x' matrix x for every network, where x holds an action vector, an observation and a one."""

    matrix: Float[Array, "copies policies inputs+1 inputs+1"]
    actions: int = eqx.field(static=True)

    def __init__(self, *, copies: int, policies: int, observations: int, actions: int):
        inputs = observations + actions
        self.matrix = jnp.zeros((copies, policies, inputs + 1, inputs + 1))
        self.actions = actions

    def __call__(
        self,
        observation: Float[Array, "batch obs"],
        action: Float[Array, "batch act"] | Float[Array, "batch policies act"],
    ) -> Float[Array, "copies policies batch"]:
        """What is squared of observations alone is one product for all policies, whatever they do."""
        acted, seen = _acted(action), _seen(observation)
        own, across, back, shared = self._blocks
        squares = (seen[:, None] * seen).reshape(-1, seen.shape[-1])
        alone = jnp.einsum("cpk,kb->cpb", shared.reshape(*shared.shape[:2], -1), squares)
        bent = jnp.einsum("cpis,sb->cpib", across + jnp.swapaxes(back, -1, -2), seen)
        if action.ndim == 2:  # the same for all policies: one product
            bent = bent + jnp.einsum("cpij,jb->cpib", own, acted[0])
        else:
            bent = bent + jnp.einsum("cpij,pjb->cpib", own, acted)
        return alone + (bent * acted).sum(axis=-2)

    def products(
        self,
        observation: Float[Array, "batch obs"],
        action: Float[Array, "batch act"] | Float[Array, "batch policies act"],
    ) -> Float[Array, "#policies products batch"]:
        """All products of two inputs and the inputs themselves: what the matrix is multiplied with."""
        acted, seen = _acted(action), _seen(observation)
        known = jnp.concatenate([acted, jnp.broadcast_to(seen, (len(acted), *seen.shape))], axis=1)
        rows, columns = self._pairs
        return known[:, rows] * known[:, columns]

    @property
    def size(self) -> int:
        return len(self._pairs[0])

    def moved(self, by: Float[Array, "copies policies products"]) -> Quadratic:
        rows, columns = self._pairs
        return eqx.tree_at(lambda part: part.matrix, self, self.matrix.at[:, :, rows, columns].add(by))

    @property
    def _blocks(self) -> tuple[Array, Array, Array, Array]:
        """Of the matrix: actions with actions, actions with the rest, the rest with actions, the rest."""
        matrix, count = self.matrix, self.actions
        return (
            matrix[..., :count, :count],
            matrix[..., :count, count:],
            matrix[..., count:, :count],
            matrix[..., count:, count:],
        )

    @property
    def _pairs(self) -> tuple[np.ndarray, np.ndarray]:
        rows, columns = np.triu_indices(self.matrix.shape[-1])
        return rows[:-1], columns[:-1]  # without the last, the constant: networks have their own


def _acted(action: Array) -> Float[Array, "#policies act batch"]:
    return jnp.clip(action.T[None] if action.ndim == 2 else jnp.moveaxis(action, 0, -1), -REACH, REACH)


def _seen(observation: Array) -> Float[Array, "obs+1 batch"]:
    ones = jnp.ones_like(observation[:, :1])
    return jnp.concatenate([jnp.clip(observation, -REACH, REACH), ones], axis=1).T
