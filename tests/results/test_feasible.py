"""What rewards like the logged ones can add up to, and values beyond it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from systems import noise_logs
from vlbm.data.episodes import Episodes
from vlbm.estimand import Estimand
from vlbm.results.estimate import Estimate
from vlbm.results.feasible import UNCLIPPED, clip_to_range, feasible_range


def paying(*rewards: float, length: int = 10, terminated: bool = False) -> Episodes:
    """Episodes of one length, each paying the same at every step."""
    logs = noise_logs([length] * len(rewards), terminated=[terminated] * len(rewards))
    return replace(logs, reward=np.repeat(np.array(rewards, np.float32), length))


def row(value: float, lower: float, upper: float, error: float = 1.0) -> Estimate:
    return Estimate("it", value, error, lower, upper, np.array([value]), 1.0, details={"size": 3.0})


def test_steps_that_always_pay_add_up_over_the_horizon():
    logs = paying(1.0, 2.0)
    assert feasible_range(logs, Estimand(1.0, 10, "mean")) == (10.0, 20.0)
    assert feasible_range(logs, Estimand(0.5, 2, "mean")) == (1.5, 3.0)
    assert feasible_range(logs, Estimand(0.5, None, "mean")) == (2.0, 4.0)


def test_where_episodes_can_end_one_step_may_be_all():
    assert feasible_range(paying(1.0, 1.0, terminated=True), Estimand(1.0, 99, "mean")) == (1.0, 99.0)
    assert feasible_range(paying(1.0), Estimand(1.0, 99, "mean")) == (1.0, 99.0)  # cut off before the horizon
    known = feasible_range(paying(1.0, 2.0), Estimand(1.0, 10, "mean"), can_end=True)
    assert known == (1.0, 20.0)


def test_rewards_that_are_never_positive_add_up_to_nothing_positive():
    low, high = feasible_range(paying(-3.0, -0.5, terminated=True), Estimand(0.9, 20, "mean"))
    assert low == pytest.approx(-3 * (1 - 0.9**20) / 0.1)
    assert high == -0.5


def test_every_logged_return_is_feasible():
    logs = noise_logs([4, 9, 12], terminated=[True, False, True])
    low, high = feasible_range(logs, Estimand(0.9, 12, "mean"))
    returns = logs.returns(0.9)
    assert low <= returns.min()
    assert returns.max() <= high


def test_what_is_possible_stays_as_it_is():
    before = row(5.0, 3.0, 8.0)
    after = clip_to_range(before, 0.0, 99.0)
    assert (after.value, after.lower, after.upper, after.standard_error) == (5.0, 3.0, 8.0, 1.0)
    assert after.warnings == ()
    assert UNCLIPPED not in after.details


def test_an_interval_reaches_no_farther_than_what_is_possible():
    after = clip_to_range(row(90.0, 60.0, 130.0), 0.0, 99.0)
    assert (after.value, after.lower, after.upper) == (90.0, 60.0, 99.0)
    assert after.warnings == ()


def test_an_impossible_value_is_cut_and_said_and_its_interval_is_no_surer_for_that():
    after = clip_to_range(row(130.0, 120.0, 140.0), 0.0, 99.0)
    assert (after.value, after.lower, after.upper) == (99.0, 68.0, 99.0)
    assert after.standard_error == 31.0
    assert after.details == {"size": 3.0, UNCLIPPED: 130.0}
    assert "130, is impossible" in after.warnings[0]
    assert "0 at least and 99 at most" in after.warnings[0]


def test_weights_that_overflowed_leave_an_interval_of_all_that_is_possible():
    after = clip_to_range(row(-2e44, -9e44, 3e44, error=1e44), -50.0, 10.0)
    assert (after.value, after.lower, after.upper) == (-50.0, -50.0, 10.0)
    assert after.standard_error == 30.0


def test_rounding_is_no_reason_to_warn():
    after = clip_to_range(row(99.0001, 99.0, 99.0002), 0.0, 99.0)
    assert after.value == 99.0
    assert after.warnings == ()
    assert UNCLIPPED not in after.details
