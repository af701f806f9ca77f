"""Normal and Bernoulli against SciPy and integrals; their consensus against the formulas."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, special, stats

from vlbm.nn.distributions import Bernoulli, Normal

WEIGHT = np.array([0.5, 0.2, 0.3])
MEAN = np.array([[1.0, -2.0], [0.5, 4.0], [-3.0, 0.25]])
SCALE = np.array([[0.5, 1.0], [2.0, 0.1], [1.5, 3.0]])


def test_the_normal_log_density_is_scipys():
    value = np.array([[0.3, -1.0], [7.0, 4.05], [-3.0, 0.0]])
    ours = Normal(jnp.asarray(MEAN), jnp.asarray(SCALE)).log_prob(jnp.asarray(value))
    np.testing.assert_allclose(ours, stats.norm.logpdf(value, MEAN, SCALE), rtol=2e-5)


def test_a_sample_is_the_mean_plus_scaled_noise():
    normal = Normal(jnp.asarray(MEAN), jnp.asarray(SCALE))
    np.testing.assert_allclose(normal.sample(jnp.full((3, 2), 2.0)), MEAN + 2 * SCALE, rtol=1e-6)
    np.testing.assert_array_equal(normal.sample(jnp.zeros((3, 2))), normal.mean)


@pytest.mark.parametrize(
    ("first", "second"), [((0.3, 0.7), (-1.0, 1.5)), ((2.0, 1.2), (1.5, 0.4)), ((0, 1), (0, 1))]
)
def test_the_divergence_of_normals_is_the_integral_it_stands_for(first, second):
    def integrand(x: float) -> float:
        return stats.norm.pdf(x, *first) * (stats.norm.logpdf(x, *first) - stats.norm.logpdf(x, *second))

    expected, _ = integrate.quad(integrand, -15, 15, limit=200)
    ours = Normal(*map(jnp.asarray, first)).kl(Normal(*map(jnp.asarray, second)))
    np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)


def test_the_divergence_from_the_standard_normal_is_the_same_formula():
    normal = Normal(jnp.asarray(MEAN), jnp.asarray(SCALE))
    standard = Normal(jnp.zeros((3, 2)), jnp.ones((3, 2)))
    np.testing.assert_allclose(normal.kl_from_standard(), normal.kl(standard), rtol=1e-6)


def test_the_consensus_of_normals_has_the_mean_and_variance_of_the_formula():
    mixed = Normal(jnp.asarray(MEAN), jnp.asarray(SCALE)).mix(jnp.asarray(WEIGHT))
    np.testing.assert_allclose(mixed.mean, [0.5 + 0.1 - 0.9, -1.0 + 0.8 + 0.075], rtol=1e-5)
    variance = [
        0.25 * 0.25 + 0.04 * 4.0 + 0.09 * 2.25,
        0.25 * 1.0 + 0.04 * 0.01 + 0.09 * 9.0,
    ]
    np.testing.assert_allclose(mixed.scale**2, variance, rtol=1e-5)


def test_the_consensus_of_normals_is_the_law_of_the_weighted_draws():
    draws = MEAN + SCALE * np.random.default_rng(0).normal(size=(200_000, 3, 2))
    average = np.einsum("b,nbd->nd", WEIGHT, draws)
    mixed = Normal(jnp.asarray(MEAN), jnp.asarray(SCALE)).mix(jnp.asarray(WEIGHT))
    np.testing.assert_allclose(mixed.mean, average.mean(0), atol=0.01)
    np.testing.assert_allclose(mixed.scale, average.std(0), rtol=0.01)


def test_the_bernoulli_log_probability_is_scipys():
    logit = np.array([-3.0, 0.0, 0.5, 4.0])
    for value in (0.0, 1.0):
        ours = Bernoulli(jnp.asarray(logit)).log_prob(jnp.full(4, value))
        np.testing.assert_allclose(ours, stats.bernoulli.logpmf(value, special.expit(logit)), rtol=1e-5)


def test_the_bernoulli_log_probability_is_finite_for_extreme_logits():
    bernoulli = Bernoulli(jnp.array([-200.0, 200.0]))
    np.testing.assert_allclose(bernoulli.log_prob(jnp.array([1.0, 0.0])), [-200.0, -200.0])
    np.testing.assert_array_equal(bernoulli.log_prob(jnp.array([0.0, 1.0])), [0.0, 0.0])


def test_the_consensus_of_bernoullis_averages_probabilities_not_logits():
    probability = np.array([0.1, 0.9, 0.5])
    mixed = Bernoulli(jnp.asarray(special.logit(probability))).mix(jnp.asarray(WEIGHT))
    np.testing.assert_allclose(mixed.probability, 0.5 * 0.1 + 0.2 * 0.9 + 0.3 * 0.5, rtol=1e-5)


def test_a_certain_consensus_still_has_finite_logarithms_and_slopes():
    def loss(logit: jax.Array) -> jax.Array:
        return Bernoulli(logit).mix(jnp.asarray(WEIGHT)).log_prob(jnp.array(1.0))

    value, slope = jax.value_and_grad(loss)(jnp.full(3, -100.0))
    np.testing.assert_allclose(value, np.log(1e-6), rtol=1e-3)
    assert np.isfinite(slope).all()
