"""The quadratic part of critics, against the formula written out."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from vlbm.estimators.critics.quadratic import Quadratic

RANDOM = np.random.default_rng(0)
OBSERVATION = RANDOM.normal(size=(7, 2)).astype(np.float32)
SHARED = RANDOM.normal(size=(7, 1)).astype(np.float32)
OWN = RANDOM.normal(size=(7, 3, 1)).astype(np.float32)


def filled() -> Quadratic:
    part = Quadratic(copies=2, policies=3, observations=2, actions=1)
    return part.moved(jnp.asarray(RANDOM.normal(size=(2, 3, part.size)), jnp.float32))


@pytest.mark.parametrize("action", [SHARED, OWN])
def test_it_is_the_quadratic_form_of_action_observation_and_one(action):
    part = filled()
    found = np.asarray(part(OBSERVATION, jnp.asarray(action)))
    for copy in range(2):
        for policy in range(3):
            taken = action if action.ndim == 2 else action[:, policy]
            known = np.concatenate([taken, OBSERVATION, np.ones((7, 1))], axis=1)
            expected = np.einsum("bi,ij,bj->b", known, np.asarray(part.matrix[copy, policy]), known)
            np.testing.assert_allclose(found[copy, policy], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("action", [SHARED, OWN])
def test_it_is_linear_in_the_products(action):
    part = Quadratic(copies=1, policies=3, observations=2, actions=1)
    products = np.asarray(part.products(OBSERVATION, jnp.asarray(action)))
    assert products.shape[1:] == (part.size, 7)
    assert part.size == 9  # three inputs, three squares, three mixed products
    by = RANDOM.normal(size=(1, 3, part.size)).astype(np.float32)
    found = np.asarray(part.moved(jnp.asarray(by))(OBSERVATION, jnp.asarray(action)))
    expected = (products * by[0][..., None]).sum(axis=1)
    np.testing.assert_allclose(found[0], expected, rtol=1e-4, atol=1e-5)


def test_what_is_far_from_all_data_counts_as_less_far():
    part = filled()
    far, farther = (np.full((1, 2), size, np.float32) for size in (100.0, 1000.0))
    np.testing.assert_allclose(part(far, far[:, :1]), part(farther, far[:, :1]))
