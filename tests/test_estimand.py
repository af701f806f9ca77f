"""Estimands: what is asked, in words and in files, and which methods can answer it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from systems import linear_logs
from vlbm.errors import InputError
from vlbm.estimand import Estimand
from vlbm.estimators.base import SAMPLED
from vlbm.estimators.registry import METHODS, make_estimator
from vlbm.policies import FunctionPolicy
from vlbm.suites.exact import linear

LIMITED = Estimand(0.995, 200, "mean")
ENDLESS = Estimand(0.99, None, "sample")
WITHOUT_LIMIT = {"fqe", "dice", "dualdice", "gendice", "vpm"}
WEIGHING = {"is", "wis", "pdis", "wpdis", "dr", "wdr"}
VECTORS: Any = SimpleNamespace(discrete=False, longest=15)
IDS: Any = SimpleNamespace(discrete=True, longest=15)
# As little training as there can be: only what is answered counts here, not how well.
HASTY = {
    "fqe": ("units=8", "rounds=1", "steps=5"),
    "dr": (
        "critic.rounds=1",
        "critic.units=8",
        "critic.steps=5",
        "clone_steps=5",
    ),
    "dice": ("units=8", "steps=5"),
    "vpm": ("units=8", "steps=5"),
    "wpdis": ("clone_steps=5",),
    "ff": ("units=4", "steps=2", "members=2", "models=1", "validate_every=2"),
}


def test_an_estimand_reads_as_part_of_a_sentence():
    assert str(LIMITED) == "return of the first 200 steps, discount 0.995, policies act by their mean"
    assert str(ENDLESS) == "return without a time limit, discount 0.99, policies sample their actions"
    assert str(Estimand(1.0, 1, "mean")).startswith("return of the first step, discount 1, ")
    assert "first 1,000 steps" in str(replace(LIMITED, horizon=1000))


@pytest.mark.parametrize(("horizon", "resolved"), [(None, 15), (7, 7), (7.0, 7), (40, 40), (math.inf, None)])
def test_without_a_horizon_the_longest_logged_episode_is_meant(horizon, resolved):
    found = Estimand.from_request(discount=0.9, horizon=horizon, actions="mean", longest=15)
    assert found == Estimand(0.9, resolved, "mean")
    assert found.infinite_horizon == (resolved is None)
    assert Estimand.from_request(**found.arguments, longest=99) == found


def test_an_estimand_comes_back_from_json_with_its_text_beside_it():
    for estimand in (LIMITED, ENDLESS):
        kept = json.loads(json.dumps(estimand.to_json(), allow_nan=False))
        assert set(kept) == {"discount", "horizon", "actions", "text"}
        assert kept["text"] == str(estimand)
        assert Estimand.from_json(kept) == estimand


def test_what_differs_is_said_in_a_few_words():
    assert LIMITED.describe_difference(LIMITED) == ""
    assert replace(LIMITED, actions="sample").describe_difference(LIMITED) == "sampled"
    assert ENDLESS.describe_difference(LIMITED) == "sampled, endless, discount 0.99"
    assert LIMITED.describe_difference(ENDLESS) == "mean, 200 steps, discount 0.995"


def test_policies_act_in_one_of_two_ways():
    with pytest.raises(InputError, match="actions sampled: must be one of mean, sample"):
        Estimand(0.9, 5, "sampled")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("discount", "horizon", "message"),
    [
        (1.0, None, "discount 1: without a horizon values need not be finite"),
        (1.5, 3, "discount 1.5: must be above 0 and at most 1"),
        (0.9, 0, "horizon 0: must be at least 1"),
    ],
)
def test_a_return_that_does_not_exist_is_no_estimand(discount, horizon, message):
    with pytest.raises(InputError, match=message):
        Estimand(discount, horizon, "mean")


@pytest.mark.parametrize("method", METHODS)
def test_a_method_that_needs_a_time_limit_says_so_and_what_to_do(method):
    estimator = make_estimator(method)
    endless = Estimand(0.9, None, "sample")
    if method in WITHOUT_LIMIT:
        assert estimator.check_estimand(endless, VECTORS) == endless
        return
    with pytest.raises(
        InputError, match=rf"{method} cannot answer without a time limit; give a horizon.*fqe"
    ):
        estimator.check_estimand(endless, VECTORS)


@pytest.mark.parametrize("method", METHODS)
def test_only_methods_that_weigh_action_vectors_answer_for_sampled_ones_instead(method):
    estimator = make_estimator(method)
    expected = "sample" if method in WEIGHING else "mean"
    assert estimator.check_estimand(LIMITED, VECTORS) == replace(LIMITED, actions=expected)
    assert estimator.check_estimand(LIMITED, IDS) == LIMITED
    sampled = replace(LIMITED, actions="sample")
    assert estimator.check_estimand(sampled, VECTORS) == sampled


@pytest.mark.parametrize("method", HASTY)
def test_all_methods_answer_the_same_question_unless_told_otherwise(method):
    system = linear()
    logs = system.sample(system.behaviour, episodes=20, seed=0)
    evaluator = make_estimator(method, settings=HASTY[method]).fit(logs)
    estimates = evaluator.evaluate(system.targets, discount=0.9, episodes=2)
    answered = "sample" if method in WEIGHING else "mean"
    assert estimates.estimand == Estimand(0.9, system.horizon, answered)
    assert (estimates.settings["horizon"], estimates.settings["actions"]) == (system.horizon, answered)
    assert (SAMPLED in estimates.warnings) == (method in WEIGHING)
    if method in WEIGHING:
        sampled = evaluator.evaluate(system.targets, discount=0.9, actions="sample")
        np.testing.assert_array_equal(sampled.values, estimates.values)
        assert sampled.estimand == estimates.estimand
        assert SAMPLED not in sampled.warnings


def test_without_a_horizon_nothing_is_earned_after_the_longest_logged_episode():
    # Every step pays 1, whatever is done, and no episode was ever ended by the system.
    logs = linear_logs()
    logs = replace(logs, reward=np.ones_like(logs.reward), terminated=np.zeros(logs.count, bool))
    policy = FunctionPolicy(lambda seen: np.zeros((len(seen), 2), np.float32))
    settings = ("units=8", "rounds=2", "steps=200", "learning_rate=0.01", "layer_norm=false")
    evaluator = make_estimator("fqe", settings=settings).fit(logs)
    (limited,) = evaluator.evaluate(policy, discount=0.9)
    (endless,) = evaluator.evaluate(policy, discount=0.9, horizon=math.inf)
    assert limited.value == pytest.approx((1 - 0.9**15) / (1 - 0.9), rel=0.03)
    assert endless.value == pytest.approx(1 / (1 - 0.9), rel=0.03)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"discount": 1.0, "horizon": math.inf}, "discount 1: without a horizon values need not be finite"),
        ({"horizon": 2.5}, "horizon 2.5: must be a whole number of steps, or inf"),
        ({"horizon": math.nan}, "horizon nan: must be at least 1"),
        ({"actions": "best"}, "actions best: must be one of mean, sample"),
    ],
)
def test_questions_without_an_answer_are_refused(options, message):
    evaluator = make_estimator("fqe").fit(linear_logs())
    with pytest.raises(InputError, match=message):
        evaluator.evaluate(FunctionPolicy(lambda seen: seen[:, :2]), **options)
