"""The variational power method: its end is the exact ratio, and what breaks is said."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from vlbm.data.episodes import Episodes
from vlbm.errors import InputError
from vlbm.estimators.ratios.vpm import VPM, Moments
from vlbm.policies import FunctionPolicy

LENGTH = 6
SMALL = VPM(units=(16,), steps=40, batch=64, resamples=200)


def two_states(*, episodes: int = 200, terminated: bool = False) -> Episodes:
    """Action 0.5 leads to state 1 and -0.5 to state 0; being asked in state 1 pays 1. All start in 0."""
    random = np.random.default_rng(0)
    action = random.choice([-0.5, 0.5], size=(episodes, LENGTH))
    state = np.concatenate([np.zeros((episodes, 1)), action > 0], axis=1)
    return Episodes(
        observation=state.reshape(-1, 1).astype(np.float32),
        action=action.reshape(-1, 1).astype(np.float32),
        reward=state[:, :-1].ravel().astype(np.float32),
        length=np.full(episodes, LENGTH),
        terminated=np.full(episodes, terminated),
    )


def evaluate(settings: VPM, episodes: Episodes, policies: Any, **options: Any):
    return settings.fit(episodes).evaluate(policies, **{"discount": 0.8, "horizon": math.inf, **options})


def test_power_steps_end_in_the_stationary_ratio():
    random = np.random.default_rng(1)
    logged = random.dirichlet(np.full(4, 3.0))
    step = random.dirichlet(np.ones(4), size=4)  # of the policy, from state to state
    begin, discount = np.array([0.5, 0.5, 0.0, 0.0]), 0.9
    # Ratios are tables that start at 1; an unknown for every entry.
    square = np.diag(logged)
    parts = {
        "raw": square,
        "square": square,
        "fitted": logged,
        "mean": np.array(1.0),
        "means": logged,
        "led": discount * logged @ step,
        "leads": discount * (logged[:, None] * step).T,
        "start": begin,
        "ended": np.array(1 - discount),
        "ends": (1 - discount) * logged,
    }
    moments = Moments(**{name: np.asarray(part, np.float32)[None] for name, part in parts.items()})
    found = 1 + np.asarray(moments.power_steps(0.9))[0]
    visits = (1 - discount) * np.linalg.solve(np.eye(4) - discount * step.T, begin)
    np.testing.assert_allclose(found, visits / logged, rtol=2e-3)


def test_action_vectors_and_ends_are_weighed_exactly():
    policies = {
        name: FunctionPolicy(lambda observation, sign=sign: np.full((len(observation), 1), 0.5 * sign))
        for name, sign in (("to 1", 1.0), ("to 0", -1.0))
    }
    # The first policy is in state 1 from the second step on, the other one never.
    there, never = evaluate(SMALL, two_states(), policies)
    assert there.value == pytest.approx(0.8 / (1 - 0.8), rel=0.1)
    assert abs(never.value) < 0.2
    stays = 1 - 1 / LENGTH
    there, never = evaluate(SMALL, two_states(terminated=True), policies)
    assert there.value == pytest.approx(0.8 * stays / (1 - 0.8 * stays), rel=0.2)


def test_what_the_log_never_shows_is_warned_of():
    logs = two_states()
    logs = replace(logs, action=-np.abs(logs.action))
    policy = FunctionPolicy(lambda observation: np.full((len(observation), 1), 5.0))
    (row,) = evaluate(SMALL, logs, policy)
    assert any("do not balance" in text for text in row.warnings)
    assert np.isfinite([row.value, row.lower, row.upper, *row.details.values()]).all()


@pytest.mark.parametrize(
    ("setting", "value"),
    [("power_every", 0), ("power_rate", 0.0), ("self_normalised", False), ("batch", 0)],
)
def test_bad_settings_are_named(setting, value):
    with pytest.raises(InputError, match=setting):
        VPM(**{setting: value})
