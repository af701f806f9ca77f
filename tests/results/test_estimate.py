"""An estimate: values, intervals, quantiles and shares, by hand and by simulation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import t as student

from vlbm.results.estimate import Estimate, from_returns


def test_one_model_gives_the_mean_and_the_student_interval():
    returns = np.array([1.0, 2.0, 4.0, 9.0])
    estimate = from_returns("a", [returns], length=3.5)
    error = np.sqrt(((returns - 4) ** 2).sum() / 3 / 4)
    assert (estimate.policy, estimate.value, estimate.length) == ("a", 4.0, 3.5)
    assert estimate.standard_error == pytest.approx(error)
    reach = 3.182446305 * error  # Student's t with 3 degrees of freedom at 97.5 %
    assert (estimate.lower, estimate.upper) == pytest.approx((4 - reach, 4 + reach))
    np.testing.assert_array_equal(estimate.returns, returns)


def test_the_interval_covers_the_value_as_often_as_it_says():
    random = np.random.default_rng(0)
    covered = 0
    for _ in range(2000):
        estimate = from_returns("a", [random.normal(3.0, 2.0, 6)], length=1)
        covered += estimate.lower <= 3.0 <= estimate.upper
    # 95 % of 2000 with a deviation of 9.7; a normal interval of six numbers would cover 90 %.
    assert 1870 <= covered <= 1930


@pytest.mark.parametrize(("confidence", "least", "most"), [(0.95, 930, 970), (0.8, 760, 840)])
def test_a_truth_as_far_from_the_models_as_they_are_from_each_other_is_covered(confidence, least, most):
    random = np.random.default_rng(1)
    covered = 0
    for _ in range(1000):
        # Three models and the truth about what all models share, each wrong in its own way.
        *values, truth = random.normal(3.0, 1.0, 4)
        parts = [random.normal(value, 0.01, 50) for value in values]
        estimate = from_returns("a", parts, length=1, confidence=confidence)
        covered += estimate.lower <= truth <= estimate.upper
    assert least <= covered <= most


def test_nobody_is_surer_than_if_the_logged_episodes_had_been_the_policys_own():
    returns = np.random.default_rng(0).normal(3.0, 2.0, 10_000)
    many, few = (from_returns("a", [returns], length=1, logged=logged) for logged in (10**12, 100))
    assert many.standard_error == pytest.approx(from_returns("a", [returns], length=1).standard_error)
    assert few.standard_error == pytest.approx(0.2, rel=0.05)
    assert few.upper - few.value == pytest.approx(1.96 * few.standard_error, rel=1e-3)


def test_models_that_disagree_are_as_uncertain_as_their_values():
    parts = [np.random.default_rng(0).normal(mean, 1.0, 50) for mean in (0.0, 5.0, 13.0)]
    estimate = from_returns("a", parts, length=1)
    values = np.array([part.mean() for part in parts])
    assert estimate.value == pytest.approx(values.mean())
    assert estimate.standard_error == pytest.approx(values.std(ddof=1) * np.sqrt(1 + 1 / 3), rel=1e-3)
    reach = student.ppf(0.975, 2) * estimate.standard_error
    assert estimate.upper - estimate.value == pytest.approx(reach, rel=1e-3)


def test_a_little_more_disagreement_makes_a_little_wider_intervals():
    base = np.random.default_rng(0).normal(size=50)
    widths = []
    for apart in np.linspace(0.0, 1.0, 101):
        parts = [base - apart, base, base + apart]
        estimate = from_returns("a", parts, length=1)
        widths.append(estimate.upper - estimate.lower)
    assert np.diff(widths).min() > -1e-9
    assert widths[-1] > 4 * widths[0]
    assert np.diff(widths).max() < 0.2 * widths[-1]


def test_models_that_agree_pool_their_episodes():
    base = np.random.default_rng(0).normal(size=40)
    parts = [base, base[::-1].copy()]
    estimate = from_returns("a", parts, length=1)
    assert estimate.standard_error == pytest.approx(np.sqrt(base.var(ddof=1) / 40 / 2))
    assert estimate.upper - estimate.value == pytest.approx(student.ppf(0.975, 78) * estimate.standard_error)
    assert len(estimate.returns) == 80


def test_models_count_alike_however_many_episodes_they_have():
    assert from_returns("a", [np.zeros(2), np.ones(8)], length=1).value == 0.5


def estimate_of(returns: list[float], **fields) -> Estimate:
    return Estimate("a", 0.0, 0.0, 0.0, 0.0, np.array(returns), 1.0, **fields)


def test_quantiles_interpolate_between_returns():
    estimate = estimate_of([4.0, 1.0, 3.0, 2.0, 5.0])
    assert estimate.quantile(0.5) == 3.0
    assert estimate.quantiles == pytest.approx(
        {"0.05": 1.2, "0.25": 2.0, "0.5": 3.0, "0.75": 4.0, "0.95": 4.8}
    )


def test_the_cvar_is_the_mean_of_the_worst_share():
    estimate = estimate_of([float(value) for value in range(20, 0, -1)])
    assert estimate.cvar(0.1) == pytest.approx((1 + 2) / 2)
    assert estimate.cvar(0.25) == pytest.approx((1 + 2 + 3 + 4 + 5) / 5)
    assert estimate.cvar(1.0) == pytest.approx(10.5)


def test_the_cvar_fills_its_share_up_with_a_part_of_the_next_return():
    assert estimate_of([1.0, 5.0, 9.0]).cvar(0.5) == pytest.approx((1 + 0.5 * 5) / 1.5)
    assert estimate_of([7.0, 2.0, 9.0]).cvar(0.1) == pytest.approx(2.0)


def test_where_a_method_sees_no_returns_their_quantiles_and_cvar_are_unknown():
    blind = replace(estimate_of([1.0]), returns=None, length=None)
    assert blind.cvar() is None
    assert blind.quantile(0.5) is None
    assert set(blind.quantiles.values()) == {None}
