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

    All pieces have equally many steps, but the first also has what there is before the first step. Windows
    may be cut into groups as well: they stand along the last axis but one, or the last of two.
    """

    whole: Any
    count: int = field(metadata={"static": True})
    size: int = field(metadata={"static": True})
    groups: int = field(default=1, metadata={"static": True})

    def first(self, group: Any = 0) -> Any:
        return jax.tree.map(lambda leaf: self._read(leaf, 0, self._begin(leaf, 1), group), self.whole)

    def later(self, index: Int[Array, ""], group: Any = 0) -> Any:
        def read(leaf: Array) -> Array:
            return self._read(leaf, self._begin(leaf, index), self.size, group)

        return jax.tree.map(read, self.whole)

    def with_first(self, piece: Any, group: Any = 0) -> Pieces:
        def write(leaf: Array, part: Array) -> Array:
            return self._write(leaf, part, 0, group)

        return replace(self, whole=jax.tree.map(write, self.whole, piece))

    def with_later(self, index: Int[Array, ""], piece: Any, group: Any = 0) -> Pieces:
        def write(leaf: Array, part: Array) -> Array:
            return self._write(leaf, part, self._begin(leaf, index), group)

        return replace(self, whole=jax.tree.map(write, self.whole, piece))

    def _begin(self, leaf: Array, index: Any) -> Any:
        return len(leaf) - self.count * self.size + index * self.size

    def _read(self, leaf: Array, begin: Any, steps: int, group: Any) -> Array:
        sizes = [steps, *leaf.shape[1:]]
        if self.groups > 1:
            sizes[_windows(leaf)] //= self.groups
        return jax.lax.dynamic_slice(leaf, self._place(leaf, begin, group), sizes)

    def _write(self, leaf: Array, part: Array, begin: Any, group: Any) -> Array:
        return jax.lax.dynamic_update_slice(leaf, part, self._place(leaf, begin, group))

    def _place(self, leaf: Array, begin: Any, group: Any) -> list[Any]:
        place = [begin, *[0] * (leaf.ndim - 1)]
        if self.groups > 1:
            place[_windows(leaf)] = group * (leaf.shape[_windows(leaf)] // self.groups)
        return place


def _windows(leaf: Array) -> int:
    """The axis along which windows stand."""
    return max(leaf.ndim - 2, 1)


def cut(tree: Any, count: int, groups: int = 1) -> Pieces:
    """The tree's arrays in pieces; those of the fewest rows have a row for every step."""
    steps = min(len(leaf) for leaf in jax.tree.leaves(tree))
    size = -(-steps // count)
    missing = count * size - steps

    def filled(leaf: Array) -> Array:
        widths = ((0, missing), *((0, 0),) * (leaf.ndim - 1))
        # Steps beyond the last hold for nothing, but repeat its numbers: their slopes must be numbers too.
        return jnp.pad(leaf, widths) if leaf.dtype == bool else jnp.pad(leaf, widths, mode="edge")

    return Pieces(jax.tree.map(filled, tree) if missing else tree, count, size, groups)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def summed(score: Score, count: int, groups: int, shared: Any, traced: Any, given: Any) -> tuple[Scalar, Any]:
    """The sum of the pieces' scores, and what else each gave, stacked, through which no gradient flows.

    Differentiating a sum over a long time keeps everything that every step went through until the way back:
    gigabytes, written and read again. But a piece's gradient is known up to one factor once its score is, so
    every piece is followed by its own way back, while what it went through is still in the cache.
    """
    traced, given = cut(traced, count, groups), cut(given, count, groups)

    def first(total: Scalar, group: Array) -> tuple[Scalar, Any]:
        value, more = score(shared, traced.first(group), given.first(group))
        return total + value, more

    def later(total: Scalar, place: tuple[Array, Array]) -> tuple[Scalar, Any]:
        value, more = score(shared, traced.later(*place), given.later(*place))
        return total + value, more

    return _over_all(first, later, jnp.zeros(()), count, groups)


def _forward(score: Score, count: int, groups: int, shared: Any, traced: Any, given: Any) -> tuple[Any, Any]:
    slope = jax.value_and_grad(score, argnums=(0, 1), has_aux=True)
    of_traced, of_given = cut(traced, count, groups), cut(given, count, groups)

    def added(carry: tuple[Scalar, Any, Pieces], found: Any) -> tuple[Scalar, Any, Any, Any]:
        total, before, _ = carry
        (value, more), (by_shared, by_piece) = found
        return total + value, jax.tree.map(jnp.add, before, by_shared), by_piece, more

    def first(carry: tuple[Scalar, Any, Pieces], group: Array) -> tuple[Any, Any]:
        found = slope(shared, of_traced.first(group), of_given.first(group))
        total, by_shared, by_piece, more = added(carry, found)
        return (total, by_shared, carry[2].with_first(by_piece, group)), more

    def later(carry: tuple[Scalar, Any, Pieces], place: tuple[Array, Array]) -> tuple[Any, Any]:
        found = slope(shared, of_traced.later(*place), of_given.later(*place))
        total, by_shared, by_piece, more = added(carry, found)
        return (total, by_shared, carry[2].with_later(place[0], by_piece, place[1])), more

    # Of the slopes of pieces all that is there at first is written over.
    start = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, shared), of_traced)
    (total, by_shared, slopes), more = _over_all(first, later, start, count, groups)
    by_traced = jax.tree.map(lambda leaf, whole: whole[: len(leaf)], traced, slopes.whole)
    return (total, more), (by_shared, by_traced)


def _backward(
    score: Score, count: int, groups: int, slopes: Any, cotangent: tuple[Scalar, Any]
) -> tuple[Any, Any, None]:
    return *jax.tree.map(lambda slope: cotangent[0] * slope, slopes), None


summed.defvjp(_forward, _backward)


def _over_all(first: Any, later: Any, start: Any, count: int, groups: int) -> tuple[Any, Any]:
    """The first pieces of all groups, then the others, group by group; what each gave is stacked."""
    carry, more = jax.lax.scan(first, start, jnp.arange(groups))
    number = jnp.arange(groups, count * groups)
    carry, rest = jax.lax.scan(later, carry, (number // groups, number % groups))
    return carry, jax.tree.map(lambda *parts: jnp.concatenate(parts), more, rest)
