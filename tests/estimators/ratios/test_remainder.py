"""Remainders: whatever the ratios, with what they leave unbalanced the value is that of the equations."""

from __future__ import annotations

import numpy as np
import pytest

from vlbm.estimators.base import Request
from vlbm.estimators.ratios.remainder import remainders
from vlbm.estimators.registry import make_estimator
from vlbm.results.estimand import Estimand
from vlbm.suites.exact import chain

SYSTEM = chain()
LOGS = SYSTEM.sample(SYSTEM.behaviour, episodes=400, seed=2)


@pytest.fixture(scope="module")
def corrected():
    settings = ("units=64", "steps=20", "resamples=50")
    request = Request(SYSTEM.targets, Estimand(SYSTEM.discount, None, "sample"))
    return make_estimator("dualdice", settings=settings).fit(LOGS, seed=0).train(request)


@pytest.mark.parametrize("wrong", ["ones", "late"])
def test_ratios_that_are_wrong_and_their_remainder_make_the_value_that_right_ones_make(corrected, wrong):
    balance, sound = corrected.balance, corrected.ratios
    state = LOGS.observation[LOGS.observation_before].argmax(axis=1)
    ratio = np.ones_like(sound) * (1.0 if wrong == "ones" else 1.0 + state)
    usable = balance.problem.usable
    values = [
        balance.values(given, usable) + remainders(balance, corrected.trained, given)
        for given in (sound, ratio)
    ]
    np.testing.assert_allclose(values[1], values[0], rtol=2e-3)
    # Without it they are far apart.
    assert np.abs(balance.values(ratio, usable) - values[0]).max() > 0.5


def test_sound_ratios_leave_little_and_the_interval_holds_it(corrected):
    for name in SYSTEM.targets:
        row = corrected.estimate(name, interval="asymptotic", resamples=50, confidence=0.95, seed=0)
        assert abs(row.details["remainder"]) < 0.02
        assert row.lower <= row.value + row.details["remainder"] <= row.upper
