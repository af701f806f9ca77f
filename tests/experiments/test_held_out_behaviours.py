"""Behaviours that are left out: how episodes are told apart, and what is compared with what."""

from __future__ import annotations

import numpy as np
import pytest

from systems import Table
from vlbm.data.episodes import Episodes, concatenate, from_padded
from vlbm.errors import InputError
from vlbm.estimators.behaviour_cloning import BehaviourCloning
from vlbm.estimators.importance import WIS
from vlbm.experiments.held_out_behaviours import (
    HeldOutBehaviour,
    HeldOutBehaviours,
    cluster_behaviours,
    leave_one_behaviour_out,
)

CLONING = BehaviourCloning(units=(8,), steps=150)


def bandit(policy: Table, *, count: int, seed: int) -> Episodes:
    """Episodes of five choices each; choice i pays i."""
    action = np.random.default_rng(seed).choice(policy.action_size, (count, 5), p=policy.probability)
    return from_padded(
        observation=np.random.default_rng(seed + 1).normal(size=(count, 6, 2)).astype(np.float32),
        action=action,
        reward=action.astype(np.float32),
        length=np.full(count, 5),
        terminated=np.ones(count, bool),
        n_actions=policy.action_size,
    )


LOW, HIGH = Table(0.8, 0.1, 0.1), Table(0.1, 0.1, 0.8)
LOGS = concatenate([bandit(LOW, count=60, seed=0), bandit(HIGH, count=40, seed=5)])
WHO = np.repeat([0, 1], [60, 40])


def test_episodes_of_different_policies_are_told_apart():
    found = cluster_behaviours(LOGS, 2, cloning=CLONING)
    agreement = (found == WHO).mean()
    assert max(agreement, 1 - agreement) > 0.9


def test_each_behaviour_is_estimated_from_the_episodes_of_the_others_alone(monkeypatch):
    fitted: list[int] = []
    learn = WIS.learn
    monkeypatch.setattr(
        WIS,
        "learn",
        lambda self, episodes, **rest: fitted.append(episodes.count) or learn(self, episodes, **rest),
    )
    found = leave_one_behaviour_out(WIS(clone_steps=100), LOGS, WHO, discount=1.0, cloning=CLONING)
    assert fitted == [40, 60]
    assert [row.episodes for row in found.rows] == [60, 40]
    returns = LOGS.returns(1.0)
    assert [row.logged for row in found.rows] == pytest.approx([returns[:60].mean(), returns[60:].mean()])


def test_an_estimator_that_weighs_rightly_ranks_behaviours_it_never_saw():
    found = leave_one_behaviour_out(WIS(clone_steps=300), LOGS, WHO, discount=1.0, cloning=CLONING)
    assert found.rank_correlation == pytest.approx(1.0)
    assert found.rows[0].estimated < found.rows[1].estimated


def test_the_error_is_a_share_of_the_deviation_of_logged_returns():
    rows = tuple(
        HeldOutBehaviour(i, 5, value, value - 1, value + 1, 0.5, 0.1) for i, value in enumerate((1.0, 3.5))
    )
    found = HeldOutBehaviours(rows, spread=2.0)
    assert found.error == pytest.approx((0.5 + 3.0) / 2 / 2.0)
    assert found.covered == 0.5


@pytest.mark.parametrize(
    ("behaviours", "message"),
    [(np.zeros(100, int), "at least two"), (np.zeros(3, int), "one number for each of the 100")],
)
def test_behaviours_that_cannot_be_left_out_are_refused(behaviours, message):
    with pytest.raises(InputError, match=message):
        leave_one_behaviour_out(WIS(), LOGS, behaviours)


def test_more_behaviours_than_episodes_can_show_are_refused():
    with pytest.raises(InputError, match="cannot be told apart"):
        cluster_behaviours(LOGS, 51)
