"""Batch normalisation under vmap with a mask for padding, which Equinox's lacks."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

Module = TypeVar("Module")
VARIANCE_FLOOR = 1e-3  # added to the variances that are divided by
MOMENTUM = 0.99  # of the running averages


class Over(eqx.Module):
    """The named vmap axes of batch statistics in training, and whether this example counts."""

    valid: Bool[Array, ""]
    axes: tuple[str, ...] = eqx.field(static=True)


class Moments(NamedTuple):
    """Statistics of a batch, for the running averages."""

    mean: Float[Array, "*stack size"]
    variance: Float[Array, "*stack size"]
    examples: Float[Array, "*stack"]  # that counted


class BatchNorm(eqx.Module):
    """Normalises by batch statistics in training, by running averages in evaluation."""

    gain: Float[Array, " size"]
    shift: Float[Array, " size"]
    mean: Float[Array, " size"]
    variance: Float[Array, " size"]

    def __init__(self, size: int):
        self.gain, self.shift = jnp.ones(size), jnp.zeros(size)
        self.mean, self.variance = jnp.zeros(size), jnp.ones(size)

    def __call__(self, x: Float[Array, " size"], over: Over | None) -> tuple[Array, Moments | None]:
        if over is None:
            mean, variance, moments = self.mean, self.variance, None
        else:
            count = jax.lax.psum(over.valid.astype(x.dtype), over.axes)
            mean = jax.lax.psum(jnp.where(over.valid, x, 0.0), over.axes) / jnp.maximum(count, 1.0)
            squared = jnp.where(over.valid, (x - mean) ** 2, 0.0)
            variance = jax.lax.psum(squared, over.axes) / jnp.maximum(count, 1.0)
            moments = jax.lax.stop_gradient(Moments(mean, variance, count))
        normalised = (x - mean) * jax.lax.rsqrt(variance + VARIANCE_FLOOR)
        return normalised * self.gain + self.shift, moments

    def update(self, moments: Moments) -> BatchNorm:
        """The layer with its running averages updated by a batch."""
        pairs = zip((self.mean, self.variance), moments[:2], strict=True)
        averages = [MOMENTUM * old + (1.0 - MOMENTUM) * new for old, new in pairs]
        return eqx.tree_at(lambda norm: (norm.mean, norm.variance), self, averages)


def average_over_time(moments: Any) -> Any:
    """Moments stacked by a scan, averaged with the number of examples of each step as weights."""

    def average(stacked: Moments) -> Moments:
        total = stacked.examples.sum(0)
        share = stacked.examples / jnp.maximum(total, 1.0)
        mean, variance = ((share[..., None] * part).sum(0) for part in stacked[:2])
        return Moments(mean, variance, total)

    return jax.tree.map(average, moments, is_leaf=_is_moments)


def update_averages(module: Module, moments: Any) -> Module:
    """The module with its running averages updated; moments are in the order of its layers."""
    leaves, structure = jax.tree.flatten(module, is_leaf=_is_norm)
    norms = [leaf for leaf in leaves if _is_norm(leaf)]
    news = [part for part in jax.tree.leaves(moments, is_leaf=_is_moments) if _is_moments(part)]
    moved = iter([norm.update(new) for norm, new in zip(norms, news, strict=True)])
    return jax.tree.unflatten(structure, [next(moved) if _is_norm(leaf) else leaf for leaf in leaves])


def _is_norm(node: Any) -> bool:
    return isinstance(node, BatchNorm)


def _is_moments(node: Any) -> bool:
    return isinstance(node, Moments)
