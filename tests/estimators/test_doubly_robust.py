"""Doubly robust: right when either half is, the bandit's formula at horizon 1, and honest where it breaks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from systems import Interrupting, Table
from vlbm.data.episodes import Episodes
from vlbm.errors import InputError
from vlbm.estimators.doubly_robust import DoublyRobust
from vlbm.estimators.fqe import FQE
from vlbm.estimators.transitions import Problem
from vlbm.suites.exact import graph

SYSTEM = graph()
DISCOUNT, HORIZON = SYSTEM.discount, SYSTEM.horizon
TARGET = SYSTEM.targets["odd 0.8"]
TRUTH = SYSTEM.value(TARGET, discount=DISCOUNT, horizon=HORIZON)
LOGS = SYSTEM.sample(SYSTEM.behaviour, episodes=4000, seed=1)


@dataclass
class Given:
    """A critic of every policy from functions of observations, actions and times, in the place of FQE's."""

    q: Any
    v: Any

    def train(self, problem: Problem, policies: Any, **_: Any) -> SimpleNamespace:
        log, step = problem.log, problem.step
        q = self.q(log.observation[problem.before], log.action[step], log.time[step])
        v = self.v(log.observation, problem.row_time)
        return SimpleNamespace(q=q[None], v=v[None], warnings=lambda name: (), interrupted=False)


def exact_critic(error: float = 0.0) -> Given:
    """The true Q and V; with an error, both are off by it, in a way that depends on what is seen and done."""
    options = {"discount": DISCOUNT, "horizon": HORIZON}
    q, v = SYSTEM.action_function(TARGET, **options), SYSTEM.state_function(TARGET, **options)
    share = TARGET.probability[0, 1]

    def spoil(observation: np.ndarray) -> np.ndarray:
        return error * (1.0 + observation.argmax(axis=-1) % 3)

    return Given(
        lambda observation, action, time: q(observation, action, time) + spoil(observation) * (1 + action),
        lambda observation, time: v(observation, time) + spoil(observation) * (1 + share),
    )


def estimate(kind: str, episodes: Episodes, critic: Given, policy: Any = TARGET, **options: Any):
    options = {"discount": DISCOUNT, "actions": "sample", **options}
    settings: Any = {"kind": kind, "critic": critic, "resamples": 200}
    return DoublyRobust(**settings).fit(episodes).evaluate({"it": policy}, **options)[0]


@pytest.mark.parametrize("kind", ["dr", "wdr"])
def test_true_weights_mend_a_spoiled_critic(kind):
    critic = exact_critic(error=2.0)
    row = estimate(kind, LOGS, critic)
    alone = critic.v(LOGS.initial_observations(), np.zeros(LOGS.count, int)).mean()
    assert abs(row.value - TRUTH) < 4 * row.standard_error
    assert abs(alone - TRUTH) > 10 * row.standard_error


@pytest.mark.parametrize("kind", ["dr", "wdr"])
def test_a_true_critic_mends_spoiled_weights(kind):
    wrong = replace(LOGS, log_prob=np.where(LOGS.action == 0, np.log(0.45), np.log(0.55)))
    row = estimate(kind, wrong, exact_critic())
    weighted = estimate(kind, wrong, Given(lambda o, *_: np.zeros(len(o)), lambda o, _: np.zeros(len(o))))
    assert abs(row.value - TRUTH) < 4 * row.standard_error
    assert abs(weighted.value - TRUTH) > 4 * weighted.standard_error


def test_a_true_critic_makes_the_estimate_less_noisy():
    nothing = Given(lambda o, *_: np.zeros(len(o)), lambda o, _: np.zeros(len(o)))
    with_critic, without = estimate("dr", LOGS, exact_critic()), estimate("dr", LOGS, nothing)
    assert with_critic.standard_error < 0.9 * without.standard_error


def bandit(count: int = 40) -> tuple[Episodes, Table, Given, np.ndarray]:
    random = np.random.default_rng(0)
    action = random.integers(2, size=count)
    logs = Episodes(
        observation=random.normal(size=(2 * count, 1)),
        action=action,
        reward=random.normal(size=count) + action,
        length=np.ones(count, int),
        terminated=np.ones(count, bool),
        log_prob=np.log([0.4, 0.6])[action],
        n_actions=2,
    )
    policy = Table(0.25, 0.75)

    def q(observation, action, time=None):
        return np.sin(observation[:, 0]) + 0.5 * action

    def v(observation, time=None):
        return np.sin(observation[:, 0]) + 0.5 * 0.75

    return logs, policy, Given(q, v), np.array([0.25, 0.75])[action] / np.array([0.4, 0.6])[action]


def test_at_horizon_one_it_is_the_formula_for_bandits():
    logs, policy, critic, ratio = bandit()
    seen = logs.initial_observations()
    direct, error = critic.v(seen), logs.reward - critic.q(seen, logs.action)
    expected = {
        "dr": (direct + ratio * error).mean(),
        "wdr": direct.mean() + (ratio * error).sum() / ratio.sum(),
    }
    for kind, value in expected.items():
        found = estimate(kind, logs, critic, policy, discount=1.0, horizon=1).value
        assert found == pytest.approx(value, rel=1e-9), kind


def test_without_weights_that_matter_the_critic_stands_alone_and_is_warned_of():
    logs, _, critic, _ = bandit()
    logs = replace(logs, action=np.zeros(logs.count, int))
    for kind in ("dr", "wdr"):
        row = estimate(kind, logs, critic, Table(0.0, 1.0), discount=0.9)
        assert row.value == pytest.approx(critic.v(logs.initial_observations()).mean(), rel=1e-9)
        assert any("no overlap from step 0 on" in text for text in row.warnings)


def test_weights_that_overflow_are_cut_and_warned_of():
    logs, policy, critic, _ = bandit()
    row = estimate("dr", replace(logs, log_prob=logs.log_prob - 400), critic, policy, discount=0.9)
    assert any("overflow" in text for text in row.warnings)
    assert np.isfinite([row.value, row.standard_error, row.lower, row.upper]).all()


def test_what_a_cut_off_episode_would_have_earned_the_critic_says():
    logs, policy, critic, ratio = bandit()
    cut = replace(logs, terminated=np.zeros(logs.count, bool))
    after = critic.v(logs.observation[1::2])
    seen = logs.initial_observations()
    error = logs.reward + 0.9 * after - critic.q(seen, logs.action)
    row = estimate("dr", cut, critic, policy, discount=0.9, horizon=5)
    assert row.value == pytest.approx((critic.v(seen) + ratio * error).mean(), rel=1e-9)


def test_folds_train_critics_apart_and_the_result_says_how_it_was_made():
    critic = FQE(units=(8,), rounds=2, steps=100, learning_rate=1e-2)
    settings = DoublyRobust(kind="dr", folds=2, critic=critic)
    estimates = settings.fit(LOGS).evaluate({"it": TARGET}, discount=DISCOUNT, actions="sample")
    assert abs(estimates[0].value - TRUTH) < 4 * estimates[0].standard_error
    assert estimates.to_json()["settings"]["folds"] == 2
    assert estimates.to_json()["settings"]["critic.units"] == [8]


def test_ctrl_c_while_critics_are_trained_is_said():
    critic = FQE(units=(8,), steps=100)
    estimates = DoublyRobust(critic=critic).fit(LOGS).evaluate({"it": TARGET}, progress=Interrupting(50))
    assert estimates.interrupted
    assert any("training was interrupted" in text for text in estimates.warnings)


@pytest.mark.parametrize(
    ("setting", "value"), [("kind", "is"), ("folds", 0), ("clip", -1.0), ("interval", "x")]
)
def test_bad_settings_are_named(setting, value):
    with pytest.raises(InputError, match=setting):
        DoublyRobust(**{setting: value})


def test_a_step_whose_outcome_is_unknown_does_not_correct_the_critic():
    cut = LOGS.select(np.flatnonzero(LOGS.length >= 2)[:200])
    observed = np.arange(200) % 20 > 0
    unfinished = replace(cut, terminated=cut.terminated & observed, final_observed=observed)
    # What stands in for the missing observations must not matter.
    observation = unfinished.observation.copy()
    observation[(np.cumsum(cut.length + 1) - 1)[~observed]] = np.eye(observation.shape[1])[0]
    other = replace(unfinished, observation=observation)
    spoiled = exact_critic(error=2.0)
    for horizon in (HORIZON, None):
        one, two = (estimate("dr", logs, spoiled, horizon=horizon) for logs in (unfinished, other))
        assert one.value == two.value
