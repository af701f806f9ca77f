"""Probabilities of being best and of beating the log."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from vlbm.estimand import Estimand
from vlbm.results.diagnostics.probabilities import (
    implied_standard_errors,
    probability_above,
    probability_best,
    standard_error,
)
from vlbm.results.estimate import Estimate, Estimates


def test_of_two_the_better_is_best_as_often_as_the_normal_distribution_says():
    found = probability_best(np.array([1.0, 0.0]), np.array([1.0, 2.0]))
    assert found[0] == pytest.approx(norm.cdf(1 / np.sqrt(5)), abs=0.01)
    assert found.sum() == pytest.approx(1.0)


def test_equal_policies_share_the_first_place():
    assert probability_best(np.zeros(4), np.zeros(4)) == pytest.approx(0.25)


def test_a_single_policy_is_the_best():
    assert probability_best(np.array([3.0]), np.array([1.0])).tolist() == [1.0]


def test_without_errors_the_largest_value_wins():
    assert probability_best(np.array([1.0, 3.0, 2.0]), np.zeros(3)).tolist() == [0.0, 1.0, 0.0]


def test_beating_the_log_weighs_both_errors():
    found = probability_above(np.array([4.0, 0.0]), np.array([3.0, 3.0]), value=0.0, error=4.0)
    assert found == pytest.approx([norm.cdf(0.8), 0.5])


def test_where_nothing_is_random_the_comparison_is_certain():
    found = probability_above(np.array([1.0, 0.0, -1.0]), np.zeros(3), value=0.0, error=0.0)
    assert found.tolist() == [1.0, 0.5, 0.0]


def test_an_interval_wider_than_its_standard_error_says_counts():
    rows = (
        Estimate("wide", 0.0, 2.0, -4.0, 4.0, np.zeros(2), 1.0),
        Estimate("narrow", 0.0, 2.0, -1.0, 1.0, np.zeros(2), 1.0),
    )
    # 4 either way is worth 4 / 1.96, more than the standard error of 2; 1 either way is worth less.
    assert implied_standard_errors(
        Estimates(rows, "vlbm", 0, Estimand(1.0, 10, "mean"), {}, {})
    ) == pytest.approx([4 / norm.ppf(0.975), 2.0])


def test_one_return_has_no_standard_error():
    assert standard_error(np.array([5.0])) == 0.0
    assert standard_error(np.array([1.0, 3.0])) == pytest.approx(1.0)
