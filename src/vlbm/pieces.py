"""Sums over pieces of time whose gradients are taken on the way, so that no piece's insides are kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Scalar

# f(what all pieces share, a piece of what gets gradients, a piece of what gets none): a number, and more.
Score = Callable[[Any, Any, Any], tuple[Scalar, Any]]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Pieces:
    """Arrays, time first, to be read and written a piece at a time.

    All pieces have equally many steps, but the first also has what there is before the first step.
    """

    whole: Any
    count: int = field(metadata={"static": True})
    size: int = field(metadata={"static": True})

    def first(self) -> Any:
        return jax.tree.map(lambda leaf: leaf[: self._begin(leaf, 1)], self.whole)

    def later(self, index: Int[Array, ""]) -> Any:
        def read(leaf: Array) -> Array:
            return jax.lax.dynamic_slice_in_dim(leaf, self._begin(leaf, index), self.size)

        return jax.tree.map(read, self.whole)

    def with_first(self, piece: Any) -> Pieces:
        return replace(self, whole=jax.tree.map(lambda leaf, part: _put(leaf, part, 0), self.whole, piece))

    def with_later(self, index: Int[Array, ""], piece: Any) -> Pieces:
        def write(leaf: Array, part: Array) -> Array:
            return _put(leaf, part, self._begin(leaf, index))

        return replace(self, whole=jax.tree.map(write, self.whole, piece))

    def _begin(self, leaf: Array, index: Any) -> Any:
        return len(leaf) - self.count * self.size + index * self.size


def cut(tree: Any, count: int) -> Pieces:
    """The tree's arrays in pieces; those of the fewest rows have a row for every step."""
    steps = min(len(leaf) for leaf in jax.tree.leaves(tree))
    size = -(-steps // count)
    missing = count * size - steps

    def filled(leaf: Array) -> Array:
        widths = ((0, missing), *((0, 0),) * (leaf.ndim - 1))
        # Steps beyond the last hold for nothing, but repeat its numbers: their slopes must be numbers too.
        return jnp.pad(leaf, widths) if leaf.dtype == bool else jnp.pad(leaf, widths, mode="edge")

    return Pieces(jax.tree.map(filled, tree) if missing else tree, count, size)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def summed(score: Score, count: int, shared: Any, traced: Any, given: Any) -> tuple[Scalar, Any]:
    """The sum of the pieces' scores, and what else each gave, stacked, through which no gradient flows.

    Differentiating a sum over a long time keeps everything that every step went through until the way back:
    gigabytes, written and read again. But a piece's gradient is known up to one factor once its score is, so
    every piece is followed by its own way back, while what it went through is still in the cache.
    """
    traced, given = cut(traced, count), cut(given, count)
    first, more = score(shared, traced.first(), given.first())

    def advance(total: Scalar, index: Array) -> tuple[Scalar, Any]:
        value, more = score(shared, traced.later(index), given.later(index))
        return total + value, more

    total, rest = jax.lax.scan(advance, first, jnp.arange(1, count))
    return total, jax.tree.map(_behind, more, rest)


def _forward(score: Score, count: int, shared: Any, traced: Any, given: Any) -> tuple[Any, Any]:
    slope = jax.value_and_grad(score, argnums=(0, 1), has_aux=True)
    of_traced, of_given = cut(traced, count), cut(given, count)
    (first, more), (by_shared, by_first) = slope(shared, of_traced.first(), of_given.first())

    def advance(carry: tuple[Scalar, Any, Pieces], index: Array) -> tuple[Any, Any]:
        total, before, slopes = carry
        (value, more), (by_shared, by_piece) = slope(shared, of_traced.later(index), of_given.later(index))
        after = jax.tree.map(jnp.add, before, by_shared)
        return (total + value, after, slopes.with_later(index, by_piece)), more

    # All that is there at first is written over.
    start = (first, by_shared, of_traced.with_first(by_first))
    (total, by_shared, slopes), rest = jax.lax.scan(advance, start, jnp.arange(1, count))
    by_traced = jax.tree.map(lambda leaf, whole: whole[: len(leaf)], traced, slopes.whole)
    return (total, jax.tree.map(_behind, more, rest)), (by_shared, by_traced)


def _backward(score: Score, count: int, slopes: Any, cotangent: tuple[Scalar, Any]) -> tuple[Any, Any, None]:
    return *jax.tree.map(lambda slope: cotangent[0] * slope, slopes), None


summed.defvjp(_forward, _backward)


def _put(leaf: Array, part: Array, begin: Any) -> Array:
    return jax.lax.dynamic_update_slice_in_dim(leaf, part, begin, 0)


def _behind(first: Array, later: Array) -> Array:
    return jnp.concatenate([first[None], later])
