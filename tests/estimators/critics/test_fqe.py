"""Fitted Q evaluation: exact where the Bellman equation can be solved by hand, and honest where it breaks."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from vlbm.episodes import Episodes
from vlbm.errors import InputError, TrainingDivergedError
from vlbm.estimators.critics import choices as choices_module
from vlbm.estimators.critics.choices import Choices
from vlbm.estimators.critics.fitted import FittedCritics, OnLogs
from vlbm.estimators.critics.fqe import FQE
from vlbm.policies import FunctionPolicy, Layer, MLPPolicy

# Networks as small as can be: everything observed is the same, so values are a few constants.
TINY = FQE(
    trunk_units=(8,),
    trunk_steps=20,
    units=(8,),
    steps=200,
    learning_rate=1e-2,
    target_rate=0.2,
    averaging=0.02,
    batch=64,
)
LENGTH = 5


def blind(*probability: float) -> MLPPolicy:
    """Chooses ids with these probabilities, whatever it sees."""
    return MLPPolicy(
        (),
        Layer(np.zeros((len(probability), 1), np.float32), np.log(np.array(probability, np.float32))),
        nonlinearity="relu",
        distribution="categorical",
    )


def constant(*, terminated: bool, episodes: int = 100) -> Episodes:
    """Action 0 pays 0 and action 1 pays 2, both are tried as often, and nothing is ever seen."""
    action = np.tile([0, 1], episodes * LENGTH)[: episodes * LENGTH]
    return Episodes(
        observation=np.zeros((episodes * (LENGTH + 1), 1), np.float32),
        action=action,
        reward=2.0 * action.astype(np.float32),
        length=np.full(episodes, LENGTH),
        terminated=np.full(episodes, terminated),
        choices=2,
    )


def evaluate(episodes: Episodes, policies: Any, settings: FQE = TINY, **options: Any):
    options = {"discount": 0.9, "horizon": math.inf, "actions": "sample", **options}
    return settings.fit(episodes).evaluate(policies, **options)


def test_a_cut_off_episode_goes_on_in_value_and_one_that_ended_does_not():
    policy = blind(0.5, 0.5)
    (endless,) = evaluate(constant(terminated=False), policy)
    assert endless.value == pytest.approx(1 / (1 - 0.9), rel=0.02)
    # One step in five is the last.
    (ending,) = evaluate(constant(terminated=True), policy)
    assert ending.value == pytest.approx(1 / (1 - 0.9 * 4 / 5), rel=0.02)
    assert endless.warnings == ending.warnings == ()


def test_with_a_horizon_nothing_is_earned_after_it_whatever_the_discount():
    policy = blind(0.5, 0.5)
    for discount, expected in ((0.9, 1 + 0.9 + 0.81), (1.0, 3.0)):
        (found,) = evaluate(constant(terminated=False), policy, discount=discount, horizon=3)
        assert found.value == pytest.approx(expected, rel=0.05)
    with pytest.raises(InputError, match="discount 1: without a horizon"):
        evaluate(constant(terminated=False), policy, discount=1.0)


def test_a_horizon_that_no_episode_reaches_is_warned_of():
    estimates = evaluate(constant(terminated=False), blind(0.5, 0.5), horizon=50)
    assert any("no logged episode is as long as the horizon of 50" in text for text in estimates.warnings)


def test_policies_act_by_their_mean_or_by_sampling_as_asked():
    policy = blind(0.3, 0.7)
    (mean,) = evaluate(constant(terminated=False), policy, actions="mean")
    (sampled,) = evaluate(constant(terminated=False), policy)
    # The likeliest id always pays 2, a draw pays 1.4 on average.
    assert mean.value == pytest.approx(2.0 / (1 - 0.9), rel=0.06)  # the edge of the feasible range
    assert sampled.value == pytest.approx(1.4 / (1 - 0.9), rel=0.03)


def test_a_divergent_critic_is_warned_of_and_still_gives_numbers():
    wild = replace(TINY, shared=False, learning_rate=1e38, layer_norm=False)
    (row,) = evaluate(constant(terminated=False), blind(0.5, 0.5), wild)
    assert any("diverged" in text for text in row.warnings)
    numbers = [row.value, row.standard_error, row.lower, row.upper, *row.details.values()]
    assert np.isfinite(numbers).all()
    assert 0.0 <= row.value <= 20.0


def test_features_that_diverge_stop_it_all_with_what_to_do():
    with pytest.raises(TrainingDivergedError, match="learning_rate"):
        evaluate(constant(terminated=False), blind(0.5, 0.5), replace(TINY, learning_rate=1e38))


def test_a_value_that_still_moves_is_warned_of():
    evaluator = TINY.fit(constant(terminated=False))
    fitted = evaluator.train({"it": blind(0.5, 0.5)}, discount=0.9, actions="sample")
    assert fitted.warnings("it") == []
    rising = np.linspace(5.0, 10.0, len(fitted.trained.course))[:, None, None]
    moved = replace(fitted, trained=replace(fitted.trained, course=rising))
    assert any("did not converge" in text for text in moved.warnings("it"))


def test_a_table_too_large_for_memory_changes_nothing(monkeypatch):
    (table,) = evaluate(constant(terminated=False), blind(0.3, 0.7))
    monkeypatch.setattr(choices_module, "BUDGET", 0)
    (asked,) = evaluate(constant(terminated=False), blind(0.3, 0.7))
    assert asked.value == pytest.approx(table.value, rel=1e-5)


def test_several_models_and_twins_tell_how_far_they_disagree():
    settings = replace(TINY, models=2, twin=True)
    (row,) = evaluate(constant(terminated=False), blind(0.5, 0.5), settings)
    assert row.value == pytest.approx(10.0, rel=0.05)
    assert row.details["models_spread"] > 0
    assert row.standard_error >= row.details["models_spread"]


def test_a_fitted_critic_says_the_same_of_logged_observations_as_of_the_log():
    logs = constant(terminated=True)
    fitted = TINY.fit(logs).train({"it": blind(0.5, 0.5)}, discount=0.9, horizon=4, actions="sample")
    q, v = fitted.on_logs()
    time, before = logs.time[:50], logs.observation[logs.observation_before[:50]]
    np.testing.assert_allclose(
        fitted["it"].q(before, logs.action[:50], time), q[0, :50], rtol=1e-5, atol=1e-5
    )
    rows = logs.observation_before[:50]
    np.testing.assert_allclose(fitted["it"].v(before, time), v[0, rows], rtol=1e-5, atol=1e-5)
    (row,) = evaluate(logs, blind(0.5, 0.5), horizon=4)
    # The direct method is the mean of V over the beginnings, and nothing else.
    beginnings = fitted["it"].v(logs.initial_observations(), np.zeros(logs.count, int))
    assert row.value == pytest.approx(beginnings.mean(), rel=1e-9)


def test_every_episode_can_be_judged_by_the_model_that_never_saw_it():
    logs = constant(terminated=True, episodes=2)
    by_model = OnLogs(
        np.array([[[1.0] * logs.steps], [[2.0] * logs.steps]]),
        np.array([[[3.0] * len(logs.observation)], [[4.0] * len(logs.observation)]]),
    )
    problem: Any = SimpleNamespace(episodes=logs)
    fitted = FittedCritics(problem, None, np.ones((2, 2)), None, by_model, np.ones((2, 1, logs.steps)))  # type: ignore[arg-type]
    q, v = fitted.on_logs(np.eye(2))
    np.testing.assert_allclose(q[0], [1.0] * LENGTH + [2.0] * LENGTH)
    np.testing.assert_allclose(v[0], [3.0] * (LENGTH + 1) + [4.0] * (LENGTH + 1))
    np.testing.assert_allclose(fitted.on_logs().q, 1.5)


def test_policies_outside_jax_are_asked_like_those_inside():
    seen = np.random.default_rng(0).normal(size=(30, 1)).astype(np.float32)
    inside = blind(0.3, 0.7)
    outside = FunctionPolicy(lambda observation: np.ones(len(observation), int))
    known = FunctionPolicy(lambda observation: np.ones(len(observation), int))
    known.log_prob = lambda observation, action: np.log([0.3, 0.7])[action]  # type: ignore[attr-defined]

    def asked(actions: Any) -> np.ndarray:
        policies = {"inside": inside, "outside": outside, "known": known}
        options = {"action_size": 2, "discrete": True, "draws": 1, "key": jax.random.key(0)}
        made = Choices(policies, seen, actions=actions, **options)  # type: ignore[arg-type]
        return np.asarray(made.table()).reshape(30, 3, 2)

    np.testing.assert_allclose(asked("mean"), np.broadcast_to([0.0, 1.0], (30, 3, 2)))
    sampled = asked("sample")
    np.testing.assert_allclose(sampled[:, [0, 2]], np.broadcast_to([0.3, 0.7], (30, 2, 2)), rtol=1e-5)
    np.testing.assert_allclose(sampled[:, 1], np.broadcast_to([0.0, 1.0], (30, 2)))


def test_a_policy_that_gives_no_action_is_named():
    broken = FunctionPolicy(lambda observation: np.full(len(observation), np.nan))
    with pytest.raises(InputError, match="policy 'broken'"):
        evaluate(constant(terminated=False), {"broken": broken}, actions="mean")


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("steps", 0),
        ("units", ()),
        ("trunk_units", (8, 0)),
        ("trunk_steps", 0),
        ("target_rate", 0.0),
        ("held_out", 1.0),
        ("learning_rate", -1.0),
        ("interval", "none"),
    ],
)
def test_bad_settings_are_named(setting, value):
    with pytest.raises(InputError, match=setting):
        FQE(**{setting: value})
