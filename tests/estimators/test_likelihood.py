"""Probabilities of logged actions where policies are judged by their likeliest action."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from systems import Table, linear_logs
from vlbm.errors import InputError
from vlbm.estimators.doubly_robust import DoublyRobust
from vlbm.estimators.fqe import FQE
from vlbm.estimators.importance import ImportanceSampling
from vlbm.estimators.likelihood import log_probs
from vlbm.policies import FunctionPolicy
from vlbm.suites.exact import chain, cliff
from vlbm.suites.exact.tabular import TabularPolicy

SYSTEM = cliff()
LOGS = SYSTEM.sample(SYSTEM.behaviour, episodes=50, seed=0)


def greedy(policy: TabularPolicy) -> TabularPolicy:
    """The policy that always does what this one does most."""
    table = np.asarray(policy.probability)
    return TabularPolicy(np.eye(table.shape[1], dtype=np.float32)[table.argmax(axis=1)])


def test_a_policy_judged_by_its_mean_takes_its_likeliest_action_and_no_other(monkeypatch):
    monkeypatch.setattr("vlbm.estimators.likelihood.CHUNK", 64)
    traced = dict(list(SYSTEM.targets.items())[:2])
    first = next(iter(traced.values()))
    outside = FunctionPolicy(lambda seen: np.asarray(first.mean(seen)))  # has no log-probability at all
    found = log_probs({**traced, "outside": outside}, LOGS, actions="mean")
    seen = LOGS.observation[LOGS.observation_before]
    for name, policy in traced.items():
        expected = np.where(np.asarray(policy.mean(seen)) == LOGS.action, 0.0, -np.inf)
        np.testing.assert_array_equal(found[name], expected)
        assert set(found[name]) == {0.0, -np.inf}
    np.testing.assert_array_equal(found["outside"], found[next(iter(traced))])


def test_an_action_that_there_is_not_is_named_with_its_policy():
    wrong = FunctionPolicy(lambda seen: np.full(len(seen), 9))
    with pytest.raises(InputError, match="policy 'wrong' chose action 9"):
        log_probs({"wrong": wrong}, LOGS, actions="mean")


def test_mean_actions_that_are_vectors_have_no_probability():
    policy = FunctionPolicy(lambda seen: seen[:, :2])
    with pytest.raises(InputError, match="no probability where actions are continuous"):
        log_probs({"it": policy}, linear_logs(), actions="mean")


@pytest.mark.parametrize("kind", ["is", "wis", "pdis", "wpdis"])
def test_importance_sampling_of_mean_actions_is_that_of_the_greedy_policy(kind):
    system = chain()
    logs = system.sample(system.behaviour, episodes=2000, seed=1, horizon=4)
    evaluator = ImportanceSampling(kind=kind, resamples=50).fit(logs)
    for policy in system.targets.values():
        (by_mean,) = evaluator.evaluate(policy, discount=0.9)
        (by_draw,) = evaluator.evaluate(greedy(policy), discount=0.9, actions="sample")
        assert by_mean.value == pytest.approx(by_draw.value, rel=1e-6)
        truth = system.value(greedy(policy), discount=0.9, horizon=4)
        assert abs(by_mean.value - truth) < 4 * by_mean.standard_error


def test_importance_weights_of_mean_actions_by_hand():
    logs = LOGS.select(np.arange(1))
    likely = Table(*np.eye(4)[logs.action[0]])
    evaluator = ImportanceSampling(kind="pdis", resamples=10).fit(logs)
    (row,) = evaluator.evaluate(likely, discount=1.0)
    matching = np.cumprod(logs.action == logs.action[0])
    expected = (np.exp(-np.cumsum(logs.log_prob)) * matching * logs.reward).sum()
    assert row.value == pytest.approx(expected, rel=1e-6)


def test_doubly_robust_estimates_of_mean_actions_are_those_of_the_greedy_policy():
    critic = FQE(units=(8,), rounds=2, steps=50, learning_rate=1e-2)
    system: Any = chain()
    logs = system.sample(system.behaviour, episodes=300, seed=1, horizon=4)
    evaluator = DoublyRobust(critic=critic, resamples=50).fit(logs)
    policies = {name: greedy(policy) for name, policy in system.targets.items()}
    by_mean = evaluator.evaluate(system.targets, discount=0.9)
    by_draw = evaluator.evaluate(policies, discount=0.9, actions="sample")
    np.testing.assert_allclose(by_mean.values, by_draw.values, rtol=1e-3)
    assert by_mean.estimand.actions == "mean"
    apart = evaluator.evaluate(system.targets, discount=0.9, actions="sample").values
    assert np.abs(by_mean.values - apart).max() > 0.1
