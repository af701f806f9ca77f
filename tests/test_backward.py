"""Gradients that are written out, against those that JAX derives."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vlbm.backward import BATCH_FLOOR, batch_normalised


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
