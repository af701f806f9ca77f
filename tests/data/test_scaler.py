"""Scaler: raw numbers to standardised ones and back."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vlbm.data.scaler import Scaler


@pytest.fixture
def values() -> np.ndarray:
    """Columns of very different size, and two constants."""
    generator = np.random.default_rng(0)
    columns = [
        generator.normal(5.0, 2.0, 500),
        generator.normal(-3e4, 1e3, 500),
        np.full(500, 7.0),
        generator.normal(0, 1e-3, 500),
        np.full(500, 0.1),
    ]
    return np.stack(columns, axis=1).astype(np.float32)


def test_standardised_columns_have_mean_zero_and_deviation_one(values):
    standardised = np.asarray(Scaler.fit(values).apply(values), np.float64)[:, [0, 1, 3]]
    np.testing.assert_allclose(standardised.mean(0), 0, atol=1e-4)
    np.testing.assert_allclose(standardised.std(0), 1, rtol=1e-4)


def test_constant_columns_are_centred_and_not_divided(values):
    scaler = Scaler.fit(values)
    np.testing.assert_array_equal(np.asarray(scaler.scale)[[2, 4]], 1.0)
    np.testing.assert_allclose(np.asarray(scaler.apply(values))[:, [2, 4]], 0.0, atol=1e-7)


def test_rounding_on_a_large_constant_is_not_blown_up_to_signal():
    values = np.full((100, 1), 1e6, np.float32)
    values[::2] = np.nextafter(np.float32(1e6), np.float32(2e6))
    assert Scaler.fit(values).scale[0] == 1.0


def test_inverting_gives_the_raw_numbers_back(values):
    scaler = Scaler.fit(values)
    np.testing.assert_allclose(scaler.invert(scaler.apply(values)), values, rtol=1e-6, atol=1e-6)


def test_a_small_spread_on_a_large_offset_is_measured_in_double_precision():
    values = (1e4 + np.random.default_rng(0).normal(0, 0.05, (50_000, 1))).astype(np.float32)
    np.testing.assert_allclose(Scaler.fit(values).scale, values.astype(np.float64).std(0), rtol=1e-6)


@pytest.mark.parametrize("rows", [1, 7, 499, 500])
def test_blocks_give_the_scaler_of_the_whole(values, rows):
    whole = Scaler.fit(values)
    blocks = Scaler.fit_blocks(values[begin : begin + rows] for begin in range(0, len(values), rows))
    for name in ("mean", "scale", "low", "high"):
        np.testing.assert_allclose(getattr(blocks, name), getattr(whole, name), rtol=1e-6, err_msg=name)


def test_clipping_keeps_to_the_range_seen_widened_on_both_sides():
    scaler = Scaler.fit(np.array([[0.0], [10.0]], np.float32))
    raw = jnp.array([[-100.0], [-0.5], [5.0], [10.9], [100.0]])
    clipped = scaler.invert(scaler.clip(scaler.apply(raw), 0.1))
    np.testing.assert_allclose(clipped[:, 0], [-1.0, -0.5, 5.0, 10.9, 11.0], rtol=1e-5)
    exact = scaler.invert(scaler.clip(scaler.apply(raw), 0.0))
    np.testing.assert_allclose(exact[:, 0], [0.0, 0.0, 5.0, 10.0, 10.0], atol=1e-5)


def test_clipping_pins_a_constant_to_its_value():
    scaler = Scaler.fit(np.full((4, 1), 7.0, np.float32))
    np.testing.assert_allclose(scaler.invert(scaler.clip(scaler.apply(jnp.array([[9.0]])), 0.5)), [[7.0]])


def test_the_identity_changes_nothing_and_clips_nothing():
    scaler = Scaler.identity(2)
    raw = jnp.array([[-1e30, 3.0]])
    np.testing.assert_array_equal(scaler.apply(raw), raw)
    np.testing.assert_array_equal(scaler.invert(raw), raw)
    np.testing.assert_array_equal(scaler.clip(raw, 0.1), raw)


def test_the_optimiser_feels_no_slope_in_what_the_data_decide(values):
    def loss(scaler: Scaler) -> jax.Array:
        return (scaler.apply(jnp.asarray(values)) ** 3 + scaler.invert(jnp.asarray(values))).sum()

    gradient = jax.grad(loss)(Scaler.fit(values))
    for leaf in jax.tree.leaves(gradient):
        np.testing.assert_array_equal(leaf, 0.0)
