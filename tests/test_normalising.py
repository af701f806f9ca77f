"""Layers normalised over a batch, against the same written plainly."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vlbm.normalising import FLOOR, normalised_layer

ROWS = 9


def plainly(rows, weight, counts, gain, shift):
    outputs, share = rows @ weight, counts[:, None] / counts.sum()
    mean = (outputs * share).sum(0)
    variance = ((outputs - mean) ** 2 * share).sum(0)
    return (outputs - mean) / jnp.sqrt(variance + FLOOR) * gain + shift, mean, variance


@pytest.fixture(scope="module", params=[(3, 4), (2, 8)], ids=["wide inputs", "narrow inputs"])
def sizes(request):
    return request.param


@pytest.fixture(scope="module", params=[(), (3,)], ids=["one", "stacked"])
def given(request, sizes):
    """Rows, weights, gains and shifts, alone or stacked, and the rows that count."""
    inputs, outputs = sizes
    random = np.random.default_rng(0)
    shapes = ((ROWS, inputs), (inputs, outputs), (outputs,), (outputs,))
    # Far from the origin: variances must not be differences of large numbers.
    parts = [jnp.asarray(random.normal(size=(*request.param, *shape)) + 2.0, jnp.float32) for shape in shapes]
    counts = jnp.asarray(random.random(ROWS) < 0.7, jnp.float32)
    assert 0 < counts.sum() < ROWS
    return parts, counts


def each(function, parts):
    return jax.vmap(function)(*parts) if parts[0].ndim == 3 else function(*parts)


def test_outputs_and_what_is_known_of_them_are_those_of_the_plain_formula(given):
    parts, counts = given
    for mine, plain in zip(
        *(
            each(lambda rows, weight, *rest, way=way: way(rows, weight, counts, *rest), parts)
            for way in (normalised_layer, plainly)
        ),
        strict=True,
    ):
        np.testing.assert_allclose(mine, plain, rtol=1e-4, atol=2e-5)


def test_the_gradient_is_the_one_jax_derives(given):
    parts, counts = given
    size = parts[-1].shape[-1]
    aim = jnp.asarray(np.random.default_rng(1).normal(size=(ROWS, size)), jnp.float32)

    def loss(way, *parts):
        def one(rows, weight, gain, shift):
            # Rows that do not count are normalised too, and what is made of them has a slope.
            return (jnp.tanh(way(rows, weight, counts, gain, shift)[0]) * aim).sum()

        return each(one, parts).sum()

    slope = jax.grad(loss, argnums=(1, 2, 3, 4))
    for mine, plain in zip(slope(normalised_layer, *parts), slope(plainly, *parts), strict=True):
        assert np.abs(plain).max() > 0.01
        np.testing.assert_allclose(mine, plain, rtol=2e-3, atol=1e-4)


def test_nothing_flows_back_through_the_averages(given):
    parts, counts = given
    slopes = jax.grad(
        lambda parts: sum(
            average.sum()
            for average in each(
                lambda rows, weight, *rest: normalised_layer(rows, weight, counts, *rest)[1:], parts
            )
        )
    )(parts)
    for slope in slopes:
        np.testing.assert_array_equal(slope, 0.0)
