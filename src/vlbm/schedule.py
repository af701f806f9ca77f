"""How long and how fast to descend, and the optimiser that does."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

LONG = 1 << 18  # numbers: what is squared and summed up in folds
FOLDS = 16


@dataclass(frozen=True)
class Schedule:
    """How long and how fast to descend."""

    steps: int = 1000
    learning_rate: float = 1e-3
    warm_up: int = 0
    decay: Literal["cosine", "exponential"] = "cosine"
    decay_rate: float = 0.05  # cosine: what remains of the rate at the end; exponential: factor per step
    clip: float | None = 20.0  # of the global gradient norm
    weight_decay: float = 0.0  # L2 on weight matrices, added to the gradient
    validate_every: int = 250

    def optimiser(self, *, flat: bool = False) -> optax.GradientTransformation:
        """How gradients become updates; `flat` moves all numbers as one vector.

        A program for one vector is a quarter smaller than one for fifty arrays, and is compiled and read the
        sooner for it. Stacked networks, each with its own gradient's norm, stay as they are.
        """
        if self.decay == "cosine":
            rate = optax.warmup_cosine_decay_schedule(
                init_value=self.learning_rate / max(self.warm_up, 1),
                peak_value=self.learning_rate,
                warmup_steps=self.warm_up,
                decay_steps=max(self.steps, self.warm_up + 1),
                end_value=self.learning_rate * self.decay_rate,
            )
        else:
            rate = optax.exponential_decay(self.learning_rate, 1, self.decay_rate)
        clip = [] if self.clip is None else [_clipped(self.clip)]
        adam, as_one = optax.adam(rate), _as_one if flat else lambda part: part
        if not self.weight_decay:
            return as_one(optax.chain(*clip, adam))
        # Which numbers decay is told by their names.
        decay = optax.add_decayed_weights(self.weight_decay, mask=_weights)
        return optax.chain(*clip, decay, as_one(adam))


def _clipped(largest: float) -> optax.GradientTransformation:
    """As `optax.clip_by_global_norm`, with squares summed up in faster ways than a reduction."""

    def update(updates: Any, state: optax.EmptyState, parameters: Any = None) -> tuple[Any, optax.EmptyState]:
        norm = jnp.sqrt(sum(_squares(leaf.reshape(-1)) for leaf in jax.tree.leaves(updates)))
        # One factor, not a quotient for every number: products need no pass of their own.
        factor = jnp.where(norm < largest, 1.0, largest / norm)
        return jax.tree.map(lambda leaf: leaf * factor, updates), state

    return optax.GradientTransformation(optax.init_empty_state, update)


def _squares(vector: Float[Array, " size"]) -> Float[Array, ""]:
    """The sum of squares. A long vector is folded first: one pass, and no squares are written anywhere."""
    if len(vector) < LONG:
        return vector @ vector
    # Without a barrier the compiler cuts the folds out of the parts that make up the vector.
    vector = jax.lax.optimization_barrier(vector)
    size = len(vector) // FOLDS
    folds = [vector[start : start + size] ** 2 for start in range(0, FOLDS * size, size)]
    rest = vector[FOLDS * size :]
    return functools.reduce(jnp.add, folds).sum() + rest @ rest


def _as_one(inner: optax.GradientTransformation) -> optax.GradientTransformation:
    """As `optax.flatten`, which takes longer to cut a vector's parts out of larger arrays."""

    def initial(parameters: Any) -> Any:
        return inner.init(_vector(parameters))

    def update(updates: Any, state: Any, parameters: Any = None) -> tuple[Any, Any]:
        given = None if parameters is None else _vector(parameters)
        moved, state = inner.update(_vector(updates), state, given)
        return ravel_pytree(updates)[1](moved), state

    return optax.GradientTransformation(initial, update)


def _vector(tree: Any) -> Float[Array, " size"]:
    """All numbers in their order. Members of a stack are copied one by one, each as a whole."""
    parts: list[Array] = []
    for leaf in jax.tree.leaves(tree):
        parts += [member.reshape(-1) for member in leaf] if leaf.ndim > 2 else [leaf.reshape(-1)]
    return jnp.concatenate(parts)


def _weights(tree: Any) -> Any:
    """Which leaves are weight matrices, by name: stacked biases are matrices too."""
    return jax.tree_util.tree_map_with_path(lambda path, _: getattr(path[-1], "name", None) == "weight", tree)
