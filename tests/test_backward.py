"""Gradients that are written out, against those that JAX derives."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vlbm.backward import CROWDED, affine, contracted, raised, softplus, stacked_product, total


@pytest.mark.parametrize(
    "widths",
    [(2, 5), (5, 2), (3, 3), (CROWDED, CROWDED), (2 * CROWDED, CROWDED), (2 * CROWDED + 1, CROWDED)],
)
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


@pytest.mark.parametrize("size", [(3, 2), (2 * CROWDED, CROWDED), (2 * CROWDED, 2)])
@pytest.mark.parametrize("shared", [False, True])
def test_stacked_layers_are_each_their_own_product_and_so_are_their_gradients(shared, size):
    random = np.random.default_rng(0)
    ins, outs = size
    shapes = ((5, ins) if shared else (4, 5, ins), (4, ins, outs), (4, outs))
    inputs, weight, bias = (jnp.asarray(random.normal(size=shape), jnp.float32) for shape in shapes)
    aim = jnp.asarray(random.normal(size=(4, 5, outs)), jnp.float32)

    def loss(layer, *given):
        return (jnp.tanh(jax.vmap(layer, in_axes=(None if shared else 0, 0, 0))(*given)) * aim).sum()

    ways = (affine, lambda inputs, weight, bias: inputs @ weight + bias)
    found, plain = (jax.value_and_grad(loss, argnums=(1, 2, 3))(way, inputs, weight, bias) for way in ways)
    for mine, theirs in zip(*map(jax.tree.leaves, (found, plain)), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


def test_sums_along_the_last_axis_and_their_gradients_are_those_of_a_reduction():
    values = jnp.asarray(np.random.default_rng(0).normal(size=(4, 5, 17)), jnp.float32)

    def loss(add, values):
        return jnp.sin(jax.vmap(add)(values)).sum()

    found, plain = (
        jax.value_and_grad(loss, argnums=1)(add, values) for add in (total, lambda part: part.sum(-1))
    )
    for one, other in zip(found, plain, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_the_softplus_and_its_slope_hold_for_numbers_of_every_size():
    values = np.array([-200.0, -30.0, -5.0, -0.1, 0.0, 0.1, 5.0, 30.0, 200.0], np.float32)
    exact = values.astype(np.float64)
    np.testing.assert_allclose(softplus(jnp.asarray(values)), np.logaddexp(exact, 0.0), rtol=1e-6, atol=1e-7)
    slope = jax.vmap(jax.grad(softplus))(jnp.asarray(values))
    np.testing.assert_allclose(slope, 1 / (1 + np.exp(-exact)), rtol=1e-6, atol=1e-7)


def test_products_of_stacks_and_what_is_added_to_columns_have_the_gradients_jax_derives():
    random = np.random.default_rng(0)
    shapes = ((4, 5, 3), (4, 3, 7), (4, 5))
    left, right, bias = (jnp.asarray(random.normal(size=shape), jnp.float32) for shape in shapes)

    def ours(left, right, bias):
        return jnp.sin(raised(stacked_product(left, right), bias)).sum()

    def plain(left, right, bias):
        return jnp.sin(left @ right + bias[..., None]).sum()

    found, expected = (
        jax.value_and_grad(loss, argnums=(0, 1, 2))(left, right, bias) for loss in (ours, plain)
    )
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
