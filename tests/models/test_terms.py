"""The parts of the objective, each on its own."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from systems import distance
from vlbm.models.terms import Terms, Weighting, alignment


def test_the_total_weighs_each_term():
    terms = Terms(*(jnp.asarray(value) for value in (1.0, 10.0, 100.0, 1e3, 1e4, 1e5)))
    weighting = Weighting(
        alignment_weight=2.0, bound_weight=3.0, divergence_weight=5.0, initial_divergence_weight=7.0
    )
    assert terms.total(weighting) == 1.0 - 2.0 * 1e4 + 3.0 * (10.0 - 7.0 * 100.0 - 5.0 * 1e3) + 1e5


@pytest.fixture(scope="module")
def difference() -> np.ndarray:
    return np.random.default_rng(3).normal(size=(5, 7)) * 3 + 20


@pytest.mark.parametrize("kind", ["pairwise", "mse", "none"])
def test_the_alignment_and_its_gradient_equal_the_double_loop(difference, kind):
    with jax.enable_x64(True):
        value = alignment(jnp.asarray(difference), kind)
        gradient = jax.grad(lambda delta: alignment(delta, kind).sum())(jnp.asarray(difference))
    np.testing.assert_allclose(value, [distance(row, kind) for row in difference], rtol=1e-12)
    units = difference.shape[1]
    slopes = {
        "pairwise": [
            [
                sum(2 * (row[j] - row[k]) for k in range(units)) / (units * (units - 1) / 2)
                for j in range(units)
            ]
            for row in difference
        ],
        "mse": 2 * difference / units,
        "none": np.zeros_like(difference),
    }
    np.testing.assert_allclose(gradient, slopes[kind], rtol=1e-10, atol=1e-12)


def test_a_shift_of_all_units_leaves_the_pairwise_alignment_alone(difference):
    with jax.enable_x64(True):
        here, there = (alignment(jnp.asarray(difference + shift), "pairwise") for shift in (0.0, 1e3))
        mse = [alignment(jnp.asarray(difference + shift), "mse") for shift in (0.0, 1e3)]
    np.testing.assert_allclose(here, there, rtol=1e-9)
    assert not np.allclose(*mse)


def test_single_precision_loses_no_digits_to_a_shift(difference):
    single = alignment(jnp.asarray(difference + 1e3, jnp.float32), "pairwise")
    np.testing.assert_allclose(single, [distance(row, "pairwise") for row in difference], rtol=1e-4)
