"""Gradients that are written out, against those that JAX derives."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vlbm.backward import BATCH_FLOOR, batch_normalised, contracted


def plainly_normalised(rows, weight, gain, shift):
    total = weight.sum()
    mean = (rows * weight).sum(0) / total
    variance = ((rows - mean) ** 2 * weight).sum(0) / total
    return (rows - mean) / jnp.sqrt(variance + BATCH_FLOOR) * gain + shift


@pytest.mark.parametrize("stack", [(), (3,)])
def test_the_gradient_of_batch_normalisation_is_the_one_jax_derives(stack):
    random = np.random.default_rng(0)
    shapes = ((9, 4), (4,), (4,))
    inputs = [jnp.asarray(random.normal(size=(*stack, *shape)), jnp.float32) for shape in shapes]
    weight = jnp.asarray(random.random((9, 1)) < 0.7, jnp.float32)
    assert 0 < weight.sum() < 9
    aim = jnp.asarray(random.normal(size=(9, 4)), jnp.float32)

    def loss(normalise, rows, gain, shift):
        def one(rows, gain, shift):
            return (jnp.tanh(normalise(rows, weight, gain, shift)) * aim).sum()

        return jax.vmap(one)(rows, gain, shift).sum() if stack else one(rows, gain, shift)

    found = jax.grad(loss, argnums=(1, 2, 3))(lambda *given: batch_normalised(*given)[0], *inputs)
    expected = jax.grad(loss, argnums=(1, 2, 3))(plainly_normalised, *inputs)
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("widths", [(2, 5), (5, 2), (3, 3)])
@pytest.mark.parametrize("stacked", [(False, False), (True, False), (False, True), (True, True)])
def test_rows_are_contracted_whichever_is_wider_and_whichever_is_shared(widths, stacked):
    random = np.random.default_rng(0)
    left, right = (
        jnp.asarray(random.normal(size=((4, 7, width) if stack else (7, width))), jnp.float32)
        for width, stack in zip(widths, stacked, strict=True)
    )
    axes = tuple(0 if stack else None for stack in stacked)
    found = jax.vmap(contracted, in_axes=axes)(left, right) if any(stacked) else contracted(left, right)
    np.testing.assert_allclose(found, jnp.swapaxes(left, -1, -2) @ right, rtol=1e-5, atol=1e-6)
