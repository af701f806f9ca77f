"""Sums over pieces of time whose gradients are taken on the way, so that no piece's insides are kept."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Scalar

# f(what all pieces share, a piece of what gets gradients, a piece of what gets none): a number, and more.
Score = Callable[[Any, Any, Any], tuple[Scalar, Any]]


class Pieces(NamedTuple):
    """Equally many steps each, but the first also has what there is before the first step."""

    first: Any
    later: Any  # stacked


def cut(tree: Any, count: int) -> Pieces:
    """The tree's arrays, time first, in pieces; those of the fewest rows have a row for every step."""
    steps = min(len(leaf) for leaf in jax.tree.leaves(tree))
    size = -(-steps // count)

    def first(leaf: Array) -> Array:
        return leaf[: len(leaf) - steps + size]

    def later(leaf: Array) -> Array:
        rest = leaf[len(leaf) - steps + size :]
        missing = ((0, (count - 1) * size - len(rest)), *((0, 0),) * (leaf.ndim - 1))
        # Steps beyond the last hold for nothing, but repeat its numbers: their slopes must be numbers too.
        filled = jnp.pad(rest, missing) if leaf.dtype == bool else jnp.pad(rest, missing, mode="edge")
        return filled.reshape(count - 1, size, *leaf.shape[1:])

    return Pieces(jax.tree.map(first, tree), jax.tree.map(later, tree))


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def summed(score: Score, count: int, shared: Any, traced: Any, given: Any) -> tuple[Scalar, Any]:
    """The sum of the pieces' scores, and what else each gave, stacked, through which no gradient flows.

    Differentiating a sum over a long time keeps everything that every step went through until the way back:
    gigabytes, written and read again. But a piece's gradient is known up to one factor once its score is, so
    every piece is followed by its own way back, while what it went through is still in the cache.
    """
    traced, given = cut(traced, count), cut(given, count)
    first, more = score(shared, traced.first, given.first)

    def advance(total: Scalar, piece: tuple[Any, Any]) -> tuple[Scalar, Any]:
        value, more = score(shared, *piece)
        return total + value, more

    total, rest = jax.lax.scan(advance, first, (traced.later, given.later))
    return total, jax.tree.map(_behind, more, rest)


def _forward(score: Score, count: int, shared: Any, traced: Any, given: Any) -> tuple[Any, Any]:
    slope = jax.value_and_grad(score, argnums=(0, 1), has_aux=True)
    of_traced, of_given = cut(traced, count), cut(given, count)
    (first, more), (by_shared, by_first) = slope(shared, of_traced.first, of_given.first)

    def advance(carry: tuple[Scalar, Any], piece: tuple[Any, Any]) -> tuple[Any, Any]:
        total, before = carry
        (value, more), (by_shared, by_traced) = slope(shared, *piece)
        return (total + value, jax.tree.map(jnp.add, before, by_shared)), (more, by_traced)

    (total, by_shared), (rest, by_later) = jax.lax.scan(
        advance, (first, by_shared), (of_traced.later, of_given.later)
    )

    def joined(whole: Array, first: Array, later: Array) -> Array:
        return jnp.concatenate([first, later.reshape(-1, *whole.shape[1:])])[: len(whole)]

    by_traced = jax.tree.map(joined, traced, by_first, by_later)
    return (total, jax.tree.map(_behind, more, rest)), (by_shared, by_traced)


def _backward(score: Score, count: int, slopes: Any, cotangent: tuple[Scalar, Any]) -> tuple[Any, Any, None]:
    return *jax.tree.map(lambda slope: cotangent[0] * slope, slopes), None


summed.defvjp(_forward, _backward)


def _behind(first: Array, later: Array) -> Array:
    return jnp.concatenate([first[None], later])
