"""The shape of the tail of weights, on weights whose shape is known."""

from __future__ import annotations

import numpy as np
import pytest

from vlbm.estimators.importance_weights import Weights, pareto_shape, weight_warnings


def pareto(shape: float, count: int = 4000, seed: int = 0) -> np.ndarray:
    """Log-weights with a tail of this shape."""
    return -shape * np.log(np.random.default_rng(seed).uniform(size=count))


@pytest.mark.parametrize("shape", [0.2, 0.5, 0.9, 1.2])
def test_the_shape_of_pareto_weights_is_found(shape):
    found = [pareto_shape(pareto(shape, seed=seed)) for seed in range(20)]
    assert np.mean(found) == pytest.approx(shape, abs=0.1)


def test_the_shape_does_not_depend_on_the_size_of_the_weights():
    log_weight = pareto(0.9)
    assert pareto_shape(log_weight + 500.0) == pytest.approx(pareto_shape(log_weight))


def test_bounded_weights_have_a_light_tail():
    uniform = np.log(np.random.default_rng(0).uniform(size=4000))
    assert pareto_shape(uniform) < 0


@pytest.mark.parametrize(
    "log_weight",
    [
        np.zeros(1000),
        np.minimum(pareto(0.9), 0.1),  # clipped
        pareto(0.9, count=20),  # few
        np.full(1000, -np.inf),
        np.where(np.arange(1000) < 3, 0.0, -np.inf),
    ],
)
def test_where_there_is_no_tail_no_shape_is_said(log_weight):
    assert pareto_shape(log_weight) is None


def test_heavy_tails_are_warned_of_and_light_ones_are_not():
    def warned(shape: float) -> bool:
        weights = Weights(pareto(shape)[:, None] - shape)
        return any("heavy tail" in text for text in weight_warnings(weights, weights.details()))

    assert warned(1.2)
    assert not warned(0.3)
