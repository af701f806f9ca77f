"""Estimates of every method held against the log: what is feasible, what it earned, whom it cannot judge."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from systems import Table, linear_logs, noise_logs
from vlbm.data.episodes import from_padded
from vlbm.errors import InputError
from vlbm.estimators.fqe import FQE
from vlbm.estimators.importance import IS, WPDIS
from vlbm.estimators.shared_cache import SharedCache
from vlbm.estimators.world_models.evaluator import WorldEvaluator
from vlbm.estimators.world_models.feedforward import FeedForward
from vlbm.policies import FunctionPolicy
from vlbm.results.estimates import Estimates
from vlbm.results.feasible import UNCLIPPED

LOGS = linear_logs(tuple(8 + number % 5 for number in range(30)))
LEFT = FunctionPolicy(lambda seen: np.full((len(seen), 2), -1.0, np.float32))
RIGHT = FunctionPolicy(lambda seen: np.full((len(seen), 2), 1.0, np.float32))
HASTY = FeedForward(units=(4,), members=2, steps=2, batch=8, validate_every=2)


def coins(rewards: float = 1.0) -> Any:
    """Episodes of ten flips of a fair coin, always paid the same, one of which ended early."""
    random = np.random.default_rng(0)
    length = np.array([*[10] * 29, 3])
    logs = from_padded(
        observation=np.zeros((30, 11, 1), np.float32),
        action=random.integers(2, size=(30, 10)).astype(np.int32),
        reward=np.full((30, 10), rewards, np.float32),
        length=length,
        terminated=length < 10,
        n_actions=2,
    )
    return replace(logs, log_prob=np.full(logs.steps, np.log(0.5)))


@pytest.mark.parametrize("reward", [1.0, -1.0])
def test_weights_promise_no_more_than_can_be_earned(reward):
    # Whole weights of 1.4^10 for some episodes: the value found is beyond ten times the reward.
    found = IS().fit(coins(reward)).evaluate({"it": Table(0.3, 0.7)}, discount=1.0, actions="sample")
    (row,) = found
    low, high = found.feasible
    assert (low, high) == ((1.0, 10.0) if reward > 0 else (-10.0, -1.0))
    assert low <= row.lower <= row.value <= row.upper <= high
    if UNCLIPPED in row.details:
        assert not low <= row.details[UNCLIPPED] <= high


def test_an_impossible_value_of_importance_sampling_is_cut_and_said():
    logs = replace(coins(), log_prob=np.full(coins().steps, np.log(0.4)))
    (row,) = IS().fit(logs).evaluate({"it": Table(0.5, 0.5)}, discount=1.0, actions="sample")
    assert row.value == 10.0
    assert row.details[UNCLIPPED] > 60
    assert any("is impossible" in text for text in row.warnings)
    assert row.lower < 10.0


def test_bounds_that_the_user_knows_come_before_those_of_the_log():
    found = WPDIS(bounds=(-5.0, 40.0)).fit(coins()).evaluate(Table(0.5, 0.5), discount=1.0, actions="sample")
    assert found.feasible == (-5.0, 40.0)


def test_a_policy_without_log_probabilities_is_left_out_alone():
    policies = {"random": Table(0.3, 0.7), "fixed": FunctionPolicy(lambda seen: np.zeros(len(seen), int))}
    found = WPDIS().fit(coins()).evaluate(policies, actions="sample")
    assert [row.policy for row in found] == ["random"]
    assert list(found.excluded) == ["fixed"]
    assert any(text.startswith("left out: fixed (without log-probabilities") for text in found.warnings)
    # By its likeliest action it can be judged.
    assert len(WPDIS().fit(coins()).evaluate(policies, actions="mean")) == 2


def test_if_no_policy_has_log_probabilities_that_is_an_error():
    with pytest.raises(InputError, match="policy 'policy' has no log-probability"):
        WPDIS().fit(coins()).evaluate(lambda seen: np.zeros(len(seen), int), actions="sample")


def test_what_the_log_earned_stands_beside_every_method():
    fqe = FQE(units=(4,), rounds=1, steps=3, resamples=10)
    for settings in (fqe, HASTY):
        found = settings.fit(LOGS).evaluate({"left": LEFT}, discount=0.9, horizon=6)
        assert found.behaviour.value == pytest.approx(LOGS.returns(0.9, horizon=6).mean())
        assert found.behaviour.episodes == 30


@pytest.fixture(scope="module")
def hasty() -> WorldEvaluator:
    return HASTY.fit(LOGS, cache=SharedCache(2))


def test_a_loaded_model_knows_what_its_log_earned_and_what_is_feasible(hasty, tmp_path):
    from vlbm.estimators.registry import load_model

    hasty.save(tmp_path)
    before, after = (
        evaluator.evaluate({"left": LEFT}, discount=0.9, horizon=6, backtest=True)
        for evaluator in (hasty, load_model(tmp_path))
    )
    assert after.behaviour == before.behaviour
    assert after.feasible == before.feasible
    assert before.backtest is not None
    assert after.backtest is None  # its log is not there
    beside = load_model(tmp_path).with_log(LOGS)
    assert beside.evaluate({"left": LEFT}, discount=0.9, horizon=6, backtest=True).backtest == before.backtest
    assert load_model(tmp_path).with_log(noise_logs([4, 4])).log is None


def test_the_behaviour_policy_is_estimated_and_held_against_held_out_episodes(hasty):
    found = hasty.evaluate({"left": LEFT}, discount=0.9, horizon=6, backtest=True)
    _, held_out = LOGS.split(HASTY.held_out, seed=0)
    tested = found.backtest
    assert tested.episodes == held_out.count
    assert tested.logged == pytest.approx(held_out.returns(0.9, horizon=6).mean())
    assert tested.error == pytest.approx(abs(tested.estimated - tested.logged))
    assert found.seconds["backtest"] > 0
    assert hasty.evaluate({"left": LEFT}, discount=0.9, horizon=6).backtest is None


@pytest.mark.parametrize(("asked", "shown"), [(None, True), (False, False)])
def test_a_page_from_python_is_back_tested_unless_that_was_refused(hasty, tmp_path, asked, shown):
    found = hasty.evaluate({"left": LEFT}, discount=0.9, horizon=6, backtest=asked)
    assert found.backtest is None
    found.report(tmp_path / "page.html")
    assert ("On your own held-out log, ff was off by" in (tmp_path / "page.html").read_text()) == shown


def test_a_policy_that_is_what_logged_the_data_is_hardly_off():
    found = WPDIS(resamples=20).fit(coins()).evaluate(Table(0.3, 0.7), discount=1.0, backtest=True)
    assert found.backtest.error_share < 0.2
    assert found.backtest.episodes == 3


def test_estimates_come_back_from_disk_with_what_they_are_held_against(hasty, tmp_path):
    found = hasty.evaluate({"left": LEFT}, discount=0.9, horizon=6, backtest=True)
    found.save(tmp_path / "it.safetensors", identity={})
    again = Estimates.load(tmp_path / "it.safetensors")
    assert again.to_json() == found.to_json()
    assert (again.backtest, again.behaviour, again.feasible) == (
        found.backtest,
        found.behaviour,
        found.feasible,
    )


def test_an_untrained_model_says_that_it_has_learnt_nothing_and_tells_no_policies_apart(hasty):
    found = hasty.evaluate({"left": LEFT, "right": RIGHT}, discount=0.9, horizon=6)
    assert any("has hardly learnt anything" in text for text in found.warnings)


def test_a_world_that_never_ends_names_the_horizon():
    never = replace(LOGS, terminated=np.zeros(LOGS.count, bool))
    found = HASTY.fit(never).evaluate({"left": LEFT}, horizon=20)
    assert any("--horizon 12" in text for text in found.warnings)
    assert not any("--horizon" in text for text in HASTY.fit(never).evaluate(LEFT, horizon=8).warnings)
