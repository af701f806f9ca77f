"""Operations whose gradients are written out: products instead of the reductions and copies JAX derives."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

# Rows of a multiple of so many numbers begin in the same few places of a core's cache. A product that
# contracts such rows of its first factor takes half as long again as with one number more to a row.
CROWDED = 64


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
    return _multiplied(inputs, weight) + bias


@jax.custom_batching.custom_vmap
def _multiplied(
    inputs: Float[Array, "*batch inputs"], weight: Float[Array, "inputs outputs"]
) -> Float[Array, "*batch outputs"]:
    return inputs @ weight


@_multiplied.def_vmap
def _multiplied_mapped(
    count: int, batched: list[bool], inputs: Array, weight: Array
) -> tuple[Float[Array, "stack *batch outputs"], bool]:
    # Of inputs that all share JAX would make one wide product, and copy its columns into another order.
    inputs, weight = _as_stacks(count, batched, inputs, weight)
    return jax.vmap(jnp.matmul)(inputs, weight), True


def _affine_forward(inputs: Array, weight: Array, bias: Array) -> tuple[Array, tuple[Array, Array]]:
    if any(size % CROWDED for size in weight.shape):
        return affine(inputs, weight, bias), (inputs, weight)
    # With a one for the bias rows are not crowded, and the bias's gradient is a row of the weight's.
    joined = _with_one(inputs)
    return _multiplied(joined, jnp.concatenate([weight, bias[None]])), (joined, weight)


def _affine_backward(saved: tuple[Array, Array], cotangent: Array) -> tuple[Array, Array, Array]:
    inputs, weight = saved
    rows, pulled = inputs.reshape(-1, inputs.shape[-1]), cotangent.reshape(-1, cotangent.shape[-1])
    by_inputs, by_weight = cotangent @ weight.T, contracted(rows, pulled)
    if len(by_weight) == len(weight):
        return by_inputs, by_weight, summed(pulled)
    return by_inputs, by_weight[:-1], by_weight[-1]


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
    return _contracted_stack(*_as_stacks(count, batched, left, right)), True


def _contracted_stack(left: Array, right: Array) -> Array:
    only_right_crowded = left.shape[-1] % CROWDED and not right.shape[-1] % CROWDED
    if left.shape[-1] > right.shape[-1] and not only_right_crowded:
        # The barrier keeps the compiler from exchanging the two again.
        return jnp.swapaxes(jax.lax.optimization_barrier(_spaced_product(right, left)), 1, 2)
    return _spaced_product(left, right)


def _spaced_product(left: Array, right: Array) -> Array:
    if left.shape[-1] % CROWDED:
        return jnp.einsum("sni,sno->sio", left, right)
    return jnp.einsum("sni,sno->sio", _with_one(left), right)[:, :-1]


def _with_one(rows: Float[Array, "*batch size"]) -> Float[Array, "*batch size+1"]:
    """Rows that end in a one."""
    return jnp.concatenate([rows, jnp.ones((*rows.shape[:-1], 1))], axis=-1)


@jax.custom_vjp
def stacked_product(
    left: Float[Array, "stack outputs inputs"], right: Float[Array, "stack inputs batch"]
) -> Float[Array, "stack outputs batch"]:
    """left right, matrix by matrix, with gradients by products of the fast kind only.

    JAX's gradient by `right` contracts the rows of both factors, which the compiler leaves to a slower kind
    of product; turning the left one round costs less.
    """
    return jnp.einsum("soi,sib->sob", left, right)


def _stacked_product_forward(left: Array, right: Array) -> tuple[Array, tuple[Array, Array]]:
    return stacked_product(left, right), (left, right)


def _stacked_product_backward(saved: tuple[Array, Array], cotangent: Array) -> tuple[Array, Array]:
    left, right = saved
    # The barrier keeps the compiler from turning it back within the product.
    turned = jax.lax.optimization_barrier(jnp.swapaxes(left, 1, 2))
    return jnp.einsum("sob,sib->soi", cotangent, right), jnp.einsum("sio,sob->sib", turned, cotangent)


stacked_product.defvjp(_stacked_product_forward, _stacked_product_backward)


@jax.custom_vjp
def raised(columns: Float[Array, "*stack size batch"], bias: Float[Array, "*stack size"]) -> Array:
    """Columns with a bias added to each; its gradient is summed up by a product."""
    return columns + bias[..., None]


def _raised_forward(columns: Array, bias: Array) -> tuple[Array, None]:
    return raised(columns, bias), None


def _raised_backward(saved: None, cotangent: Array) -> tuple[Array, Array]:
    return cotangent, cotangent @ jnp.ones(cotangent.shape[-1])


raised.defvjp(_raised_forward, _raised_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def repeated(values: Float[Array, "*shape"], count: int) -> Float[Array, "count *shape"]:
    """The same values several times over; a product adds up their gradients, which reductions do slowly."""
    return jnp.broadcast_to(values, (count, *values.shape))


def _repeated_forward(values: Array, count: int) -> tuple[Array, None]:
    return repeated(values, count), None


def _repeated_backward(count: int, saved: None, cotangent: Array) -> tuple[Array]:
    return ((jnp.ones((1, count)) @ cotangent.reshape(count, -1)).reshape(cotangent.shape[1:]),)


repeated.defvjp(_repeated_forward, _repeated_backward)


def summed(rows: Float[Array, "rows size"]) -> Float[Array, " size"]:
    """The sum of rows, by a product with ones."""
    return weighed(jnp.ones(len(rows)), rows)


@jax.custom_vjp
def total(values: Float[Array, "*batch size"]) -> Float[Array, "*batch"]:
    """Sums along the last axis, by a product with ones: the compiler's own add number by number."""
    size = values.shape[-1]
    return (values.reshape(-1, size) @ jnp.ones((size, 1))).reshape(values.shape[:-1])


def _total_forward(values: Array) -> tuple[Array, int]:
    return total(values), values.shape[-1]


def _total_backward(size: int, cotangent: Array) -> tuple[Array]:
    return (jnp.broadcast_to(cotangent[..., None], (*cotangent.shape, size)),)


total.defvjp(_total_forward, _total_backward)


@jax.custom_batching.custom_vmap
def weighed(weight: Float[Array, " rows"], rows: Float[Array, "rows size"]) -> Float[Array, " size"]:
    """The weighed sum of rows, by a product, which is faster than a reduction."""
    return (weight[None] @ rows)[0]


@weighed.def_vmap
def _weighed_mapped(
    count: int, batched: list[bool], weight: Array, rows: Array
) -> tuple[Float[Array, "stack size"], bool]:
    # JAX would make one product of all, for which it copies the whole stack into another order.
    weight, rows = _as_stacks(count, batched, weight, rows)
    return jnp.einsum("son,snu->sou", weight[:, None], rows)[:, 0], True


def _as_stacks(count: int, batched: list[bool], *parts: Array) -> list[Array]:
    return [
        part if is_stack else jnp.broadcast_to(part, (count, *part.shape))
        for part, is_stack in zip(parts, batched, strict=True)
    ]


@jax.custom_jvp
def softplus(values: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """log(1 + e^x) to an absolute error of 1e-7; what keeps relative errors small takes twice as long."""
    return jnp.maximum(values, 0.0) + jnp.log(1.0 + jnp.exp(-jnp.abs(values)))


@softplus.defjvp
def _softplus_slope(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    return softplus(*primals), jax.nn.sigmoid(*primals) * tangents[0]
