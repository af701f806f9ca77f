"""Metrics have the values that hand and DOPE's own tables give, and say what they cannot measure."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from vlbm.errors import InputError
from vlbm.results.metrics import (
    absolute_error,
    dope_regret,
    normalised_absolute_error,
    rank_correlation,
    regret,
)
from vlbm.suites.dope import find_problem

ALL = (rank_correlation, regret, dope_regret, absolute_error, normalised_absolute_error)
COMPARING = (rank_correlation, regret, dope_regret, normalised_absolute_error)


def undiscounted_and_discounted(environment):
    known = find_problem(f"dope/{environment}-medium")
    guess, true = known.truth("undiscounted").values, known.truth("discounted").values
    return np.array([guess[name] for name in true]), np.array(list(true.values()))


@pytest.mark.parametrize(
    ("environment", "expected"),
    [("ant", 1.0), ("halfcheetah", 1.0), ("hopper", 0.9727272727), ("walker2d", 0.8909090909)],
)
def test_the_rank_correlation_of_dopes_two_truths_is_known(environment, expected):
    assert rank_correlation(*undiscounted_and_discounted(environment)) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("environment", "expected"), [("hopper", 0.040309), ("walker2d", 0.092953)])
def test_the_regret_of_choosing_by_the_undiscounted_return_is_known(environment, expected):
    assert dope_regret(*undiscounted_and_discounted(environment)) == pytest.approx(expected, abs=1e-6)


def test_spearman_agrees_with_the_sum_of_squared_rank_differences():
    estimated, true = np.array([3.0, 1, 2, 5, 4]), np.array([10.0, 20, 30, 40, 50])
    # Ranks differ by 2, -1, -1, 1, -1: 1 - 6 * 8 / (5 * 24).
    assert rank_correlation(estimated, true) == pytest.approx(0.6)


def test_ties_share_the_average_of_their_ranks():
    # Ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4: covariance 4.5, spreads sqrt(4.5) and sqrt(5).
    expected = 4.5 / np.sqrt(4.5 * 5)
    assert rank_correlation(np.array([0.0, 7, 7, 9]), np.array([1.0, 2, 3, 4])) == pytest.approx(expected)


def test_spearman_agrees_with_scipy_on_random_numbers_with_ties():
    from scipy.stats import spearmanr

    rng = np.random.default_rng(0)
    for _ in range(50):
        estimated, true = rng.integers(0, 6, 9).astype(float), rng.normal(size=9)
        if np.ptp(estimated) > 0:
            expected = spearmanr(estimated, true).statistic
            assert rank_correlation(estimated, true) == pytest.approx(expected)


@pytest.mark.parametrize("change", [np.exp, np.arctan, lambda x: x**3, lambda x: 5 * x - 1000])
def test_rank_correlation_and_regret_see_only_the_order_of_the_estimates(change):
    rng = np.random.default_rng(1)
    estimated, true = rng.normal(size=11), rng.normal(size=11)
    for metric in (rank_correlation, regret, partial(regret, k=3)):
        assert metric(change(estimated), true) == pytest.approx(metric(estimated, true))


def test_the_right_order_scores_one_and_the_reversed_order_minus_one():
    true = np.array([-3.0, 8, 1, 20])
    assert rank_correlation(true, true) == pytest.approx(1)
    assert rank_correlation(-true, true) == pytest.approx(-1)
    assert regret(true, true) == dope_regret(true, true) == absolute_error(true, true) == 0
    assert regret(-true, true) == 1


def test_regret_is_what_the_chosen_policy_falls_short_of_the_best():
    estimated, true = np.array([5.0, 9, 7]), np.array([10.0, 6, 2])
    assert regret(estimated, true) == pytest.approx((10 - 6) / (10 - 2))
    assert dope_regret(estimated, true) == pytest.approx((10 - 6) / 10)
    assert regret(estimated, true, k=2) == pytest.approx(0.5)
    assert regret(estimated, true, k=3) == dope_regret(estimated, true, k=3) == 0


def test_more_choices_never_cost_and_all_of_them_leave_no_regret():
    rng = np.random.default_rng(2)
    for _ in range(20):
        estimated, true = rng.normal(size=8), rng.normal(size=8)
        losses = [regret(estimated, true, k) for k in range(1, 9)]
        assert losses == sorted(losses, reverse=True)
        assert losses[-1] == 0


def test_negative_returns_have_a_regret_of_the_range_but_none_in_dopes_form():
    estimated, true = np.array([1.0, 2, 0]), np.array([-100.0, -300, -500])
    assert regret(estimated, true) == pytest.approx(0.5)
    assert np.isnan(dope_regret(estimated, true))


def test_errors_are_in_units_of_the_return_and_of_the_true_range():
    estimated, true = np.array([1.0, -1, 4]), np.array([2.0, 2, 12])
    assert absolute_error(estimated, true) == pytest.approx(4)
    assert normalised_absolute_error(estimated, true) == pytest.approx(0.4)
    assert absolute_error(np.array([1.0]), np.array([3.0])) == 2


def test_equal_estimates_rank_nothing():
    assert rank_correlation(np.ones(5), np.arange(5.0)) == 0
    assert regret(np.ones(5), np.arange(5.0)) == 1  # the first policy, which happens to be the worst


def test_equal_true_returns_leave_nothing_to_rank_and_nothing_to_lose():
    assert np.isnan(rank_correlation(np.arange(5.0), np.ones(5)))
    assert np.isnan(normalised_absolute_error(np.arange(5.0), np.ones(5)))
    assert regret(np.arange(5.0), np.ones(5)) == 0


@pytest.mark.parametrize("metric", ALL)
def test_what_is_not_a_number_is_refused_by_its_place(metric):
    with pytest.raises(InputError, match=r"estimated return of policy 1 .* is nan"):
        metric(np.array([1.0, np.nan, 2]), np.arange(3.0))
    with pytest.raises(InputError, match=r"true return of policy 2 .* is inf"):
        metric(np.arange(3.0), np.array([1.0, 2, np.inf]))


@pytest.mark.parametrize("metric", ALL)
def test_estimates_and_truths_must_be_as_many(metric):
    with pytest.raises(InputError, match="3 estimated returns, 4 true ones"):
        metric(np.arange(3.0), np.arange(4.0))
    with pytest.raises(InputError, match="shape"):
        metric(np.ones((2, 2)), np.ones((2, 2)))


@pytest.mark.parametrize("metric", COMPARING)
def test_one_policy_cannot_be_compared(metric):
    with pytest.raises(InputError, match="needs at least 2; there are 1"):
        metric(np.ones(1), np.ones(1))


@pytest.mark.parametrize("k", [0, 4, -1])
def test_k_counts_policies(k):
    with pytest.raises(InputError, match="give k from 1 to 3"):
        regret(np.arange(3.0), np.arange(3.0), k)
