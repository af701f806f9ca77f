"""Values that are all the same."""

from __future__ import annotations

import numpy as np

from systems import noise_logs
from vlbm.estimand import Estimand
from vlbm.policies import FunctionPolicy
from vlbm.results.diagnostics.flatness import warn_if_flat
from vlbm.results.estimate import Estimate
from vlbm.results.estimates import Estimates

LOGS = noise_logs([10] * 20)


def constant(value: float) -> FunctionPolicy:
    return FunctionPolicy(lambda seen: np.full((len(seen), 1), value, np.float32))


def warnings_of(values: list[float], actions: list[float]) -> tuple[str, ...]:
    rows = tuple(
        Estimate(f"{place}", value, 0.01, value - 0.02, value + 0.02, np.zeros(1), 1.0)
        for place, value in enumerate(values)
    )
    found = Estimates(rows, "vlbm", 0, Estimand(0.9, 10, "mean"), {}, {})
    policies = {f"{place}": constant(action) for place, action in enumerate(actions)}
    seen = LOGS.initial_observations()
    return warn_if_flat(found, policies, seen, log=LOGS, space=LOGS).warnings


def test_one_value_for_policies_that_act_differently_is_warned_of():
    (warning,) = warnings_of([1.0, 1.01, 0.99], [-1.0, 0.0, 1.0])
    assert "all 3 policies get nearly the same value (within 0.02) though they act differently" in warning


def test_policies_that_do_the_same_may_have_the_same_value():
    assert warnings_of([1.0, 1.01, 0.99], [1.0, 1.0, 1.0]) == ()


def test_values_as_far_apart_as_logged_returns_are_not_flat():
    assert warnings_of([1.0, 9.0, -5.0], [-1.0, 0.0, 1.0]) == ()


def test_a_single_policy_is_never_flat():
    assert warnings_of([1.0], [1.0]) == ()
