"""Density ratios: what they are worth, what speaks against them, and what an interrupted training leaves."""

from __future__ import annotations

import math
from dataclasses import replace

import jax
import numpy as np
import pytest

from systems import blind
from vlbm.data.episodes import Episodes
from vlbm.errors import InputError
from vlbm.estimand import Estimand
from vlbm.estimators.density_ratio import FittedRatios, violate_flow, weigh_rewards
from vlbm.estimators.dice import DICE, DualDICE
from vlbm.estimators.transitions import Problem
from vlbm.estimators.vpm import VPM

LENGTH = 5
ENDLESS = Estimand(0.9, None, "sample")
SMALL = DICE(units=(8,), rounds=1, steps=20, batch=64, resamples=200)


def alternate(*, terminated: bool, episodes: int = 10) -> Episodes:
    """Episodes that only take action 0, and others that only take action 1 and are paid 2 for it."""
    action = np.repeat(np.arange(episodes) % 2, LENGTH)
    return Episodes(
        observation=np.zeros((episodes * (LENGTH + 1), 1), np.float32),
        action=action,
        reward=2.0 * action.astype(np.float32),
        length=np.full(episodes, LENGTH),
        terminated=np.full(episodes, terminated),
        n_actions=2,
    )


@pytest.mark.parametrize("terminated", [False, True])
def test_a_value_is_what_is_earned_over_what_ends(terminated):
    log = alternate(terminated=terminated)
    problem = Problem(log, ENDLESS)
    ends = 0.1 + 0.9 / LENGTH * terminated
    ratio = np.where(log.action == 1, 1.6, 0.4)
    # Both kinds of episodes end as much: ratios that average 1 weigh what is earned, and nothing else.
    assert weigh_rewards(problem, SMALL, ratio).value == pytest.approx(1.6 / ends)
    # Twice the ratios are the same ratios where they are normalised, and earn twice as much where not.
    assert weigh_rewards(problem, SMALL, 2 * ratio).value == pytest.approx(1.6 / ends)
    assert weigh_rewards(problem, DualDICE(), 2 * ratio).value == pytest.approx(3.2 / ends)
    assert SMALL.mean_ratio(problem, 2 * ratio[None]) == pytest.approx([2.0])
    assert VPM().mean_ratio(problem, 2 * ratio[None]) == pytest.approx([2.0])


def test_sound_ratios_fulfil_the_flow_constraint_and_others_violate_it():
    log = alternate(terminated=False)
    problem = Problem(log, ENDLESS)
    data = problem.transitions({"eager": blind(0.2, 0.8)}, draws=1, key=jax.random.key(0))
    sound = np.where(log.action == 1, 1.6, 0.4)
    assert violate_flow(problem, data, sound[None]) == pytest.approx([0.0], abs=1e-6)
    # Weighed alike, action 1 has half of the log and should have 0.8 of it.
    assert violate_flow(problem, data, np.ones((1, log.steps))) == pytest.approx([0.3], abs=1e-6)


def fitted(
    ratio: np.ndarray, values: list[float], *, lstd: float, flow: float = 0.0, outside: float = 0.0
) -> FittedRatios:
    problem = Problem(alternate(terminated=False), ENDLESS)
    return FittedRatios(
        problem=problem,
        settings=SMALL,
        names=("a",),
        ratio=ratio[None],
        values=np.array(values)[:, None],
        lstd=np.array([lstd]),
        mean=SMALL.mean_ratio(problem, ratio[None]),
        flow=np.array([flow]),
        outside=np.array([outside]),
        interrupted=False,
    )


def test_the_interval_holds_what_linear_equations_say_as_far_as_rewards_allow():
    one = np.ones(10 * LENGTH)
    near = fitted(one, [10.0, 10.0], lstd=12.0).estimate("a", resamples=200, confidence=0.9, seed=0)
    assert near.value == pytest.approx(10.0)
    assert near.upper > 12.0
    assert near.details["lstd_change"] == pytest.approx(2.0)
    same = fitted(one, [10.0, 10.0], lstd=10.0).estimate("a", resamples=200, confidence=0.9, seed=0)
    far = fitted(one, [10.0, 10.0], lstd=1e6).estimate("a", resamples=200, confidence=0.9, seed=0)
    # Nobody can earn more than 2 at every step: 20, which is 10 more.
    assert far.upper == pytest.approx(same.upper + 10.0)


@pytest.mark.parametrize(
    ("ratio", "values", "flow", "said"),
    [
        (np.ones(50), [10.0, 10.01], 0.0, ()),
        (np.ones(50), [13.0, 10.0], 0.0, ("have not settled",)),
        (np.full(50, 0.5), [10.0, 10.0], 0.0, ("average 0.5",)),
        (np.ones(50), [10.0, 10.0], 0.3, ("violate the flow constraint",)),
    ],
)
def test_what_speaks_against_ratios_is_said(ratio, values, flow, said):
    row = fitted(ratio, values, lstd=10.0, flow=flow).estimate("a", resamples=200, confidence=0.9, seed=0)
    assert len(row.warnings) == len(said)
    for text, part in zip(row.warnings, said, strict=True):
        assert part in text


@pytest.mark.parametrize(("outside", "said"), [(0.2, 0), (0.6, 1)])
def test_actions_that_were_mostly_never_tried_are_warned_of(outside, said):
    row = fitted(np.ones(50), [10.0, 10.0], lstd=10.0, outside=outside).estimate(
        "a", resamples=200, confidence=0.9, seed=0
    )
    assert sum("its actions were never tried: at 60" in text for text in row.warnings) == said
    assert row.details["outside_the_log"] == outside


def test_ratios_that_leave_the_value_to_few_steps_are_warned_of():
    ratio = np.zeros(10 * LENGTH)
    ratio[7] = 50.0
    row = fitted(ratio, [20.0, 20.0], lstd=20.0).estimate("a", resamples=200, confidence=0.9, seed=0)
    assert row.details["effective_share"] == pytest.approx(0.02)
    many = fitted(np.ones(50), [20.0], lstd=20.0)
    assert any(
        "concentrated" in text for text in many.warnings(20.0, {**row.details, "effective_share": 0.01})
    )


def test_a_policy_that_does_what_the_log_never_shows_is_warned_of():
    log = replace(alternate(terminated=False), action=np.zeros(10 * LENGTH, np.int64))
    (row,) = SMALL.fit(log).evaluate(blind(1e-6, 1 - 1e-6), discount=0.9, horizon=math.inf, actions="sample")
    assert any("flow constraint" in text for text in row.warnings)
    assert np.isfinite([row.value, row.lower, row.upper, *row.details.values()]).all()


@pytest.mark.parametrize("method", [SMALL, VPM(units=(8,), rounds=1, steps=20, batch=64, resamples=200)])
def test_how_often_a_policy_does_what_was_never_tried_is_found_in_the_log(method):
    log = replace(alternate(terminated=False), action=np.zeros(10 * LENGTH, np.int64))
    policies = {"other": blind(1e-6, 1 - 1e-6), "logged": blind(1 - 1e-6, 1e-6)}
    other, logged = method.fit(log).evaluate(policies, discount=0.9, horizon=math.inf, actions="sample")
    assert any("its actions were never tried" in text for text in other.warnings)
    assert not any("never tried" in text for text in logged.warnings)
    assert other.details["outside_the_log"] == pytest.approx(1.0, abs=1e-5)
    assert logged.details["outside_the_log"] == pytest.approx(0.0, abs=1e-5)


def test_an_interrupted_training_keeps_what_there_is_and_says_so(monkeypatch):
    from vlbm.estimators import density_ratio

    class Interrupted:
        interrupted = True

    monkeypatch.setattr(density_ratio, "train", lambda loss, model, data, **options: (model, Interrupted()))
    found = (
        replace(SMALL, rounds=3)
        .fit(alternate(terminated=False))
        .evaluate(blind(0.2, 0.8), discount=0.9, horizon=math.inf, actions="sample")
    )
    assert found.interrupted
    assert any("training was interrupted" in text for text in found.warnings)
    assert found[0].value == pytest.approx(16.0, rel=0.01)  # last layers are solved for, even untrained


def test_discount_1_needs_a_horizon():
    with pytest.raises(InputError, match="discount 1: without a horizon"):
        SMALL.fit(alternate(terminated=False)).evaluate(blind(0.5, 0.5), discount=1.0, horizon=math.inf)
