"""Operations whose gradients are written out: products instead of the reductions and copies JAX derives."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from vlbm.devices import everywhere

BATCH_FLOOR = 1e-3  # what batch normalisation adds to variances


@jax.custom_vjp
def affine(
    inputs: Float[Array, "*batch inputs"],
    weight: Float[Array, "inputs outputs"],
    bias: Float[Array, " outputs"],
) -> Float[Array, "*batch outputs"]:
    """x W + b, with gradients by products that need no transposed copies of large arrays.

    What JAX derives contracts the batch of a transposed operand and sums for the bias by a slow reduction:
    together a tenth of a training step.
    """
    return inputs @ weight + bias


def _affine_forward(inputs: Array, weight: Array, bias: Array) -> tuple[Array, tuple[Array, Array]]:
    return affine(inputs, weight, bias), (inputs, weight)


def _affine_backward(saved: tuple[Array, Array], cotangent: Array) -> tuple[Array, Array, Array]:
    inputs, weight = saved
    rows, pulled = inputs.reshape(-1, inputs.shape[-1]), cotangent.reshape(-1, cotangent.shape[-1])
    return cotangent @ weight.T, contracted(rows, pulled), _summed(pulled)


affine.defvjp(_affine_forward, _affine_backward)


@jax.custom_batching.custom_vmap
def contracted(
    left: Float[Array, "rows inputs"], right: Float[Array, "rows outputs"]
) -> Float[Array, "inputs outputs"]:
    """left^T right. The compiled product is half as fast again where the wider of the two stands second."""
    return _contracted_stack(left[None], right[None])[0]


@contracted.def_vmap
def _contracted_mapped(
    count: int, batched: list[bool], left: Array, right: Array
) -> tuple[Float[Array, "stack inputs outputs"], bool]:
    # JAX would make one product of all if they share a factor, and copy the others into another order for it.
    left, right = (
        part if is_stack else jnp.broadcast_to(part, (count, *part.shape))
        for part, is_stack in zip((left, right), batched, strict=True)
    )
    return _contracted_stack(left, right), True


def _contracted_stack(left: Array, right: Array) -> Array:
    if left.shape[-1] > right.shape[-1]:
        # The barrier keeps the compiler from exchanging the two again.
        return jnp.swapaxes(jax.lax.optimization_barrier(jnp.einsum("sno,sni->soi", right, left)), 1, 2)
    return jnp.einsum("sni,sno->sio", left, right)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def repeated(values: Float[Array, "*shape"], count: int) -> Float[Array, "count *shape"]:
    """The same values several times over; a product adds up their gradients, which reductions do slowly."""
    return jnp.broadcast_to(values, (count, *values.shape))


def _repeated_forward(values: Array, count: int) -> tuple[Array, None]:
    return repeated(values, count), None


def _repeated_backward(count: int, saved: None, cotangent: Array) -> tuple[Array]:
    return ((jnp.ones((1, count)) @ cotangent.reshape(count, -1)).reshape(cotangent.shape[1:]),)


repeated.defvjp(_repeated_forward, _repeated_backward)


@jax.custom_vjp
def batch_normalised(
    rows: Float[Array, "rows size"],
    weight: Float[Array, "rows 1"],
    gain: Float[Array, " size"],
    shift: Float[Array, " size"],
) -> tuple[Float[Array, "rows size"], Float[Array, " size"], Float[Array, " size"]]:
    """Every unit normalised over the rows that count, of all devices, and the mean and variance it had.

    The gradient is written out, with sums by products: what JAX derives takes three times as long as the
    layers on both sides. Nothing flows back through the mean and the variance that are returned.
    """
    return _batch_forward(rows, weight, gain, shift)[0]


def _batch_forward(rows: Array, weight: Array, gain: Array, shift: Array) -> tuple[Any, Any]:
    total, summed = everywhere((weight.sum(), _summed(rows * weight)))
    total = jnp.maximum(total, 1.0)
    mean = summed / total
    variance = everywhere(_summed((rows - mean) ** 2 * weight)) / total
    rate = jax.lax.rsqrt(variance + BATCH_FLOOR)
    normalised = (rows - mean) * (rate * gain) + shift
    return (normalised, mean, variance), (rows, weight, gain, mean, rate, total)


def _batch_backward(saved: tuple[Array, ...], cotangent: tuple[Array, Array, Array]) -> tuple[Array, ...]:
    rows, weight, gain, mean, rate, total = saved
    pulled, standard = cotangent[0], (rows - mean) * rate
    by_shift, by_gain = _summed(pulled), _summed(pulled * standard)
    # The mean and the variance depend on all rows that count, wherever they are.
    all_shift, all_gain = everywhere((by_shift, by_gain))
    by_rows = (rate * gain) * (pulled - weight * (all_shift + standard * all_gain) / total)
    return by_rows, jnp.zeros_like(weight), by_gain, by_shift


batch_normalised.defvjp(_batch_forward, _batch_backward)


@jax.custom_batching.custom_vmap
def _summed(rows: Float[Array, "rows size"]) -> Float[Array, " size"]:
    """By a product with ones, which is faster than a reduction."""
    return (jnp.ones((1, len(rows))) @ rows)[0]


@_summed.def_vmap
def _summed_stack(
    count: int, batched: list[bool], rows: Float[Array, "stack rows size"]
) -> tuple[Array, bool]:
    # JAX would make one product of all, for which it copies the whole stack into another order.
    return jnp.einsum("son,snu->sou", jnp.ones((count, 1, rows.shape[1])), rows)[:, 0], True
