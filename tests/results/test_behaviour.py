"""What the log itself earned."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import t as student

from systems import noise_logs
from vlbm.estimand import Estimand
from vlbm.results.behaviour import keep_rewards, summarise_behaviour

LOGS = noise_logs([6, 9, 12, 12], terminated=[True, True, False, False])


def test_the_row_is_the_mean_logged_return_of_what_is_asked():
    row = summarise_behaviour(LOGS, Estimand(0.9, 7, "mean"), confidence=0.9)
    assert row is not None
    returns = LOGS.returns(0.9, horizon=7)
    assert row.value == pytest.approx(returns.mean())
    error = returns.std(ddof=1) / 2
    assert row.standard_error == pytest.approx(error)
    assert row.upper - row.lower == pytest.approx(2 * student.ppf(0.95, 3) * error)
    assert row.episodes == 4


def test_its_interval_holds_nothing_that_cannot_be_earned():
    paying = replace(LOGS, reward=-np.abs(LOGS.reward))
    row = summarise_behaviour(paying, Estimand(1.0, 12, "mean"), confidence=0.9999)
    assert row is not None
    assert row.upper == pytest.approx(float(paying.reward.max()))


def test_episodes_that_were_cut_off_say_nothing_of_endless_returns():
    assert summarise_behaviour(LOGS, Estimand(0.9, None, "mean"), confidence=0.9) is None
    assert summarise_behaviour(LOGS, Estimand(0.5, None, "mean"), confidence=0.9) is not None
    ended = replace(LOGS, terminated=np.ones(4, bool))
    assert summarise_behaviour(ended, Estimand(0.9, None, "mean"), confidence=0.9) is not None


def test_a_single_episode_has_no_standard_error():
    row = summarise_behaviour(LOGS.select([2]), Estimand(0.9, 12, "mean"), confidence=0.9)
    assert row is not None
    assert row.lower == row.value == row.upper


def test_kept_rewards_earn_what_the_log_earned():
    kept = keep_rewards(LOGS, most=1000)
    np.testing.assert_array_equal(kept.returns(0.9, horizon=8), LOGS.returns(0.9, horizon=8))
    np.testing.assert_array_equal(kept.terminated, LOGS.terminated)


def test_of_many_rewards_some_are_kept_and_the_extremes_among_them():
    long = noise_logs([10] * 50)
    kept = keep_rewards(long, most=100)
    assert 100 <= kept.steps <= 120
    assert (kept.reward.min(), kept.reward.max()) == (long.reward.min(), long.reward.max())
