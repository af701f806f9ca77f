"""Held-out logged returns, and how far an estimate of them is off."""

from __future__ import annotations

import numpy as np
import pytest

from systems import noise_logs
from vlbm.estimand import Estimand
from vlbm.results.backtest import Backtest, hold_out
from vlbm.results.estimate import Estimate

ASKED = Estimand(0.9, 12, "mean")


def test_what_is_held_out_is_what_split_holds_out():
    logs = noise_logs([12] * 20)
    held = hold_out(logs, ASKED, share=0.25, seed=3)
    assert held is not None
    returns = logs.split(0.25, seed=3)[1].returns(0.9)
    assert (held.episodes, held.logged) == (5, pytest.approx(returns.mean()))
    assert held.estimand == Estimand(0.9, 12, "sample")
    assert held.standard_error == pytest.approx(logs.returns(0.9).std(ddof=1) / np.sqrt(5))


def test_only_steps_that_were_recorded_are_compared():
    lengths = [4, 12, 12, 12, 12, 12, 12, 12, 12, 8, 8, 3]
    logs = noise_logs(lengths, terminated=[False] * 11 + [True])
    held = hold_out(logs, Estimand(0.9, None, "mean"), share=0.9, seed=0)
    assert held is not None
    assert held.estimand.horizon == 8  # one cut off earlier is left out, one that ended earlier is not
    _, part = logs.split(0.9, seed=0)
    part = part.select((part.length >= 8) | part.terminated)
    assert held.logged == pytest.approx(part.returns(0.9, horizon=8).mean())


def test_a_single_episode_cannot_be_held_out():
    assert hold_out(noise_logs([12]), ASKED, share=0.1, seed=0) is None


def test_the_error_is_a_share_of_the_spread_of_logged_returns():
    logs = noise_logs([12] * 40)
    held = hold_out(logs, ASKED, share=0.25, seed=0)
    assert held is not None
    spread = np.ptp(np.percentile(logs.returns(0.9), [5, 95]))
    value = held.logged + 0.5 * spread
    found = held.compare(Estimate("behaviour", value, 0.0, value, value, np.zeros(1), 1.0))
    assert found.error == pytest.approx(0.5 * spread)
    assert found.error_share == pytest.approx(0.5)
    assert found.standard_error == pytest.approx(held.standard_error)
    assert str(found).startswith("off by 50% of the spread of logged returns")


def test_only_errors_that_are_large_and_no_accident_are_warned_of():
    def warned(share: float, error: float, standard_error: float) -> bool:
        return bool(Backtest(5, 10, 1.0, 1.0, standard_error, error, share).warnings)

    assert warned(0.5, 3.0, 1.0)
    assert not warned(0.5, 1.0, 1.0)
    assert not warned(0.05, 3.0, 1.0)
