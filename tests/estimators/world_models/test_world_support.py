"""Estimates from worlds say when most of what was imagined lies outside the log."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from vlbm import load_model
from vlbm.data.readers import save_packed
from vlbm.estimators.world_models.evaluator import SINGLE
from vlbm.estimators.world_models.feedforward import FeedForward
from vlbm.policies import FunctionPolicy
from vlbm.results.diagnostics.trust import LEAVES, OUTSIDE, Diagnostics, assess_trust
from vlbm.suites.exact import graph
from walks import walks

SETTINGS = FeedForward(batch=64, steps=20, validate_every=20, models=1, units=(8,), clip_margin=None)
LOGS = walks(40, 12)


def constant(action: float) -> FunctionPolicy:
    return FunctionPolicy(lambda seen: np.full((len(seen), 1), action))


# Logged actions are standard normal: zero is what most steps have, and none has thirty.
POLICIES = {"near": constant(0.0), "far": constant(30.0)}


@pytest.fixture(scope="module")
def evaluator():
    return SETTINGS.fit(LOGS, seed=0)


def test_a_policy_that_leaves_the_log_is_warned_of_and_one_that_stays_is_not(evaluator):
    near, far = evaluator.evaluate(POLICIES, episodes=10)
    assert not any(LEAVES in text for text in near.warnings)
    assert near.details[OUTSIDE] < 0.5
    assert far.details[OUTSIDE] == 1.0
    said = f"{LEAVES}: 100 % of imagined steps lie farther from the log than logged steps do"
    assert said in far.warnings


def test_the_warning_is_in_the_json(evaluator):
    rows = evaluator.evaluate(POLICIES, episodes=10).to_json()["policies"]
    assert [bool(row["warnings"]) for row in rows] == [False, True]


def test_a_loaded_model_knows_the_log_too(evaluator, tmp_path):
    evaluator.save(tmp_path)
    loaded = load_model(tmp_path).evaluate(POLICIES, episodes=10)
    assert [row.warnings for row in loaded] == [
        row.warnings for row in evaluator.evaluate(POLICIES, episodes=10)
    ]


def test_data_larger_than_memory_are_not_looked_through(tmp_path):
    evaluator = SETTINGS.fit(save_packed(LOGS, tmp_path / "packed"), seed=0)
    assert evaluator.support is None
    found = evaluator.evaluate(POLICIES, episodes=10)[1].warnings
    assert not any(LEAVES in text for text in found)


def test_a_verdict_says_it_once(evaluator):
    _, far = evaluator.evaluate(POLICIES, episodes=10)
    verdict = assess_trust(far, Diagnostics(candidates=np.array([0.0, 1.0])))
    texts = [reason.text for reason in verdict.reasons if "leaves the logged data" in reason.text]
    assert len(texts) == 1
    assert verdict.level == "doubtful"


def test_worlds_of_densities_say_that_states_are_not_for_them():
    system = graph()
    logs = system.sample(system.behaviour, episodes=40, seed=0)
    estimates = SETTINGS.fit(logs, seed=0).evaluate(system.targets, episodes=10)
    assert any("observations are one of 8 states" in text for text in estimates.warnings)
    vectors = SETTINGS.fit(LOGS, seed=0).evaluate(POLICIES, episodes=10)
    assert not any("states" in text for text in vectors.warnings)


def test_a_single_model_says_that_its_interval_does_not_know_others(evaluator):
    assert SINGLE in evaluator.evaluate(POLICIES, episodes=10).warnings
    several = replace(evaluator, worlds=evaluator.worlds * 2, histories=evaluator.histories * 2)
    assert SINGLE not in several.evaluate(POLICIES, episodes=10).warnings
