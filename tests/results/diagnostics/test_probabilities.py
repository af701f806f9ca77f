"""Probabilities of being best and of beating the log."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from vlbm.estimand import Estimand
from vlbm.results.diagnostics.probabilities import (
    draw_values,
    implied_standard_errors,
    pairwise_probabilities,
    probability_above,
    probability_best,
    standard_error,
)
from vlbm.results.estimate import Estimate
from vlbm.results.estimates import Estimates


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


def test_errors_do_not_leave_what_is_feasible():
    drawn = draw_values(np.array([95.0, 3.0, 50.0]), np.array([40.0, 80.0, 0.0]), bounds=(1.0, 99.0))
    assert drawn.min() >= 1.0
    assert drawn.max() <= 99.0
    assert np.ptp(drawn[:, 2]) == 0
    middle = draw_values(np.array([50.0]), np.array([5.0]), bounds=(1.0, 99.0))
    assert middle.mean() == pytest.approx(50, abs=0.2)
    assert middle.std() == pytest.approx(5, rel=0.03)


def test_a_wide_interval_far_down_the_ranking_is_not_the_likeliest_best():
    # The last is so unsure that half of what it could be lies beyond what can be earned.
    values, spread = np.array([97.0, 96.0, 95.0, 94.0, 60.0]), np.array([2.0, 2.0, 2.0, 2.0, 200.0])
    assert probability_best(values, spread).argmax() == 4
    within = probability_best(values, spread, bounds=(1.0, 99.0))
    assert within.argmax() == 0
    assert within[4] < 0.05
    assert within.sum() == pytest.approx(1.0)


def test_of_every_pair_one_is_above_the_other():
    values, spread = np.array([1.0, 0.0, 0.0]), np.array([1.0, 2.0, 2.0])
    found = pairwise_probabilities(values, spread)
    np.testing.assert_allclose(found + found.T, 1.0)
    np.testing.assert_array_equal(np.diag(found), 0.5)
    assert found[0, 1] == pytest.approx(norm.cdf(1 / np.sqrt(5)), abs=0.01)
    assert found[1, 2] == pytest.approx(0.5, abs=0.01)
    assert pairwise_probabilities(np.ones(2), np.zeros(2)).tolist() == [[0.5, 0.5], [0.5, 0.5]]


def test_beating_the_log_counts_only_what_is_feasible():
    values, spread = np.array([98.0]), np.array([100.0])
    (free,) = probability_above(values, spread, value=90.0, error=0.1)
    (within,) = probability_above(values, spread, value=90.0, error=0.1, bounds=(1.0, 99.0))
    assert free > 0.5
    assert within == pytest.approx(0.11, abs=0.03)


def test_one_return_has_no_standard_error():
    assert standard_error(np.array([5.0])) == 0.0
    assert standard_error(np.array([1.0, 3.0])) == pytest.approx(1.0)


def test_of_every_two_policies_the_better_is_better_as_often_as_the_normal_distribution_says():
    found = pairwise_probabilities(np.array([1.0, 0.0, 0.0]), np.array([1.0, 2.0, 0.0]))
    assert found[0, 1] == pytest.approx(norm.cdf(1 / np.sqrt(5)))
    assert found[0, 2] == pytest.approx(norm.cdf(1.0))
    assert found + found.T == pytest.approx(np.ones((3, 3)))
