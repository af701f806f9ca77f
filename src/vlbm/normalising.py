"""Layers whose outputs are normalised over a batch, with their gradients written out."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from vlbm.backward import affine, contracted, summed, weighed

FLOOR = 1e-3  # what is added to variances
NARROW = 4  # times as many outputs as inputs, at least


def normalised_layer(
    rows: Float[Array, "rows inputs"],
    weight: Float[Array, "inputs outputs"],
    counts: Float[Array, " rows"],
    gain: Float[Array, " outputs"],
    shift: Float[Array, " outputs"],
) -> tuple[Float[Array, "rows outputs"], Float[Array, " outputs"], Float[Array, " outputs"]]:
    """x W normalised over the rows that count, and the mean and variance it had.

    A bias would leave no trace but in the mean. Nothing flows back through the mean and the variance.
    """
    if rows.shape[-1] * NARROW <= weight.shape[-1]:
        return _normalised_by_inputs(rows, weight, counts, gain, shift)
    return normalised(affine(rows, weight, jnp.zeros(weight.shape[-1])), counts, gain, shift)


@jax.custom_vjp
def normalised(
    rows: Float[Array, "rows size"],
    counts: Float[Array, " rows"],
    gain: Float[Array, " size"],
    shift: Float[Array, " size"],
) -> tuple[Float[Array, "rows size"], Float[Array, " size"], Float[Array, " size"]]:
    """Every unit normalised over the rows that count, and the mean and variance it had.

    Sums are products: what JAX derives takes three times as long as the layers on both sides.
    """
    return _forward(rows, counts, gain, shift)[0]


def _forward(rows: Array, counts: Array, gain: Array, shift: Array) -> tuple[Any, Any]:
    total, mean = _mean(rows, counts)
    variance = weighed(counts, (rows - mean) ** 2) / total
    rate = jax.lax.rsqrt(variance + FLOOR)
    outputs = (rows - mean) * (rate * gain) + shift
    return (outputs, mean, variance), (rows, counts, gain, mean, rate, total)


def _backward(saved: tuple[Array, ...], cotangent: tuple[Array, Array, Array]) -> tuple[Array, ...]:
    rows, counts, gain, mean, rate, total = saved
    pulled, standard = cotangent[0], (rows - mean) * rate
    by_shift, by_gain = summed(pulled), summed(pulled * standard)
    # The mean and the variance depend on all rows that count.
    by_rows = (rate * gain) * (pulled - counts[:, None] * (by_shift + standard * by_gain) / total)
    return by_rows, jnp.zeros_like(counts), by_gain, by_shift


normalised.defvjp(_forward, _backward)


@jax.custom_vjp
def _normalised_by_inputs(
    rows: Array, weight: Array, counts: Array, gain: Array, shift: Array
) -> tuple[Array, Array, Array]:
    """The same where inputs are few: all that is to be known of many outputs follows from them.

    The variance of x W is that of W's columns under the inputs' covariance C, and normalising is another W.
    On the way back what reaches the rows is never worked out for itself: its products with inputs and weights
    are small matrices. Only the outputs and what is pulled from them are as large as the batch.
    """
    return _forward_by_inputs(rows, weight, counts, gain, shift)[0]


def _forward_by_inputs(
    rows: Array, weight: Array, counts: Array, gain: Array, shift: Array
) -> tuple[Any, Any]:
    total, mean = _mean(rows, counts)
    centred = rows - mean
    product = contracted(centred * counts[:, None], centred)
    variance = jnp.maximum((product @ weight * weight).sum(0) / total, 0.0)
    rate = jax.lax.rsqrt(variance + FLOOR)
    outputs = centred @ (weight * (rate * gain)) + shift
    return (outputs, mean @ weight, variance), (centred, product, weight, counts, gain, rate, total)


def _backward_by_inputs(saved: tuple[Array, ...], cotangent: tuple[Array, Array, Array]) -> tuple[Array, ...]:
    centred, product, weight, counts, gain, rate, total = saved
    pulled, merged = cotangent[0], weight * (rate * gain)
    by_merged = contracted(centred, pulled)
    by_shift, by_gain = summed(pulled), rate * (weight * by_merged).sum(0)
    standing = weight * (rate * by_gain / total)
    by_rows = pulled @ merged.T - counts[:, None] * (
        (by_shift / total) @ merged.T + centred @ (standing @ merged.T)
    )
    by_weight = (rate * gain) * (by_merged - product @ standing)
    return by_rows, by_weight, jnp.zeros_like(counts), by_gain, by_shift


_normalised_by_inputs.defvjp(_forward_by_inputs, _backward_by_inputs)


def _mean(rows: Array, counts: Array) -> tuple[Array, Array]:
    """How many rows count, at least one, and their mean."""
    total = jnp.maximum(counts.sum(), 1.0)
    return total, weighed(counts, rows) / total
