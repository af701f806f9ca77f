"""Tables of actions: every policy is asked, whatever it is made of, and all draw with the same noise."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from vlbm.policies import FunctionPolicy, Layer, MLPPolicy, tabulate
from vlbm.policies.tabulate import tabulate_actions

SEEN = np.random.default_rng(0).normal(size=(30, 1)).astype(np.float32)


def blind(*probability: float) -> MLPPolicy:
    head = Layer(np.zeros((len(probability), 1), np.float32), np.log(np.array(probability, np.float32)))
    return MLPPolicy((), head, nonlinearity="relu", distribution="categorical")


def gaussian(mean: float) -> MLPPolicy:
    layer = Layer(np.zeros((1, 1), np.float32), np.array([mean], np.float32))
    spread = Layer(np.zeros((1, 1), np.float32), np.zeros(1, np.float32))
    return MLPPolicy((), layer, spread, nonlinearity="relu", distribution="gaussian")


def ask(policies: dict[str, Any], actions: Any, *, discrete: bool = True, draws: int = 1) -> np.ndarray:
    options: dict[str, Any] = {"action_size": 2 if discrete else 1, "discrete": discrete}
    return tabulate_actions(policies, SEEN, actions=actions, draws=draws, key=jax.random.key(0), **options)


def test_policies_outside_jax_are_asked_like_those_inside():
    outside = FunctionPolicy(lambda observation: np.ones(len(observation), int))
    known = FunctionPolicy(lambda observation: np.ones(len(observation), int))
    known.log_prob = lambda observation, action: np.log([0.3, 0.7])[action]  # type: ignore[attr-defined]
    policies = {"outside": outside, "inside": blind(0.3, 0.7), "known": known}
    np.testing.assert_allclose(ask(policies, "mean")[0], np.broadcast_to([0.0, 1.0], (30, 3, 2)))
    sampled = ask(policies, "sample")[0]
    np.testing.assert_allclose(sampled[:, 1:], np.broadcast_to([0.3, 0.7], (30, 2, 2)), rtol=1e-5)
    np.testing.assert_allclose(sampled[:, 0], np.broadcast_to([0.0, 1.0], (30, 2)))


def test_policies_draw_with_the_same_noise_and_draws_differ():
    drawn = ask({"a": gaussian(0.0), "b": gaussian(1.0)}, "sample", discrete=False, draws=3)
    assert drawn.shape == (3, 30, 2, 1)
    np.testing.assert_allclose(drawn[:, :, 1], drawn[:, :, 0] + 1.0, rtol=1e-5, atol=1e-5)
    assert len(np.unique(drawn[:, :, 0].round(5))) > 80


def test_chunks_change_nothing_where_nothing_is_drawn(monkeypatch):
    policies = {"a": gaussian(0.5)}
    whole = ask(policies, "mean", discrete=False)
    monkeypatch.setattr(tabulate, "CHUNK", 7)
    np.testing.assert_array_equal(ask(policies, "mean", discrete=False), whole)


def test_where_all_draws_would_not_fit_in_memory_there_are_fewer(monkeypatch):
    monkeypatch.setattr(tabulate, "BUDGET", 2 * 4 * 30)
    assert ask({"a": gaussian(0.0)}, "sample", discrete=False, draws=5).shape[0] == 2
    assert ask({"a": gaussian(0.0)}, "mean", discrete=False, draws=5).shape[0] == 1


def test_a_policy_that_gives_another_number_of_actions_is_named():
    wrong = FunctionPolicy(lambda observation: np.full(len(observation), 5))
    with pytest.raises(ValueError, match="policy 'wrong'"):
        ask({"wrong": wrong}, "mean")
