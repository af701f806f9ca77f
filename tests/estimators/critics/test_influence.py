"""Influence: checked against equations of tables, solved exactly."""

from __future__ import annotations

import numpy as np
import pytest

from vlbm.estimators.critics.fqe import FQE
from vlbm.suites.exact import chain

SYSTEM = chain()
LOGS = SYSTEM.sample(SYSTEM.behaviour, episodes=400, seed=2)
SMALL = FQE(trunk_units=(16,), trunk_steps=50, units=(32,), steps=40, held_out=0.0)


def tables(policy) -> tuple[np.ndarray, np.ndarray, float]:
    """The weight and the Bellman residual of every logged step, and the value, by tables of Q."""
    states, actions = SYSTEM.states, SYSTEM.actions
    state = LOGS.observation[LOGS.observation_before].argmax(axis=1)
    after = LOGS.observation[LOGS.observation_before + 1].argmax(axis=1)
    place = state * actions + LOGS.action
    square = np.zeros((states * actions, states * actions))
    np.add.at(square, (place, place), 1.0)
    for action in range(actions):
        chance = policy.probability[after, action]
        np.add.at(square, (place, after * actions + action), -SYSTEM.discount * chance)
    begun = np.zeros((states, actions))
    begun[0] = LOGS.count * policy.probability[0]
    table = np.linalg.solve(square, np.bincount(place, LOGS.reward, minlength=states * actions))
    weight = np.linalg.solve(square.T, begun.ravel())[place] * LOGS.steps / LOGS.count
    values = (policy.probability * table.reshape(states, actions)).sum(axis=1)
    residual = LOGS.reward + SYSTEM.discount * values[after] - table[place]
    return weight, residual, float(values[0])


@pytest.fixture(scope="module")
def fitted():
    return SMALL.fit(LOGS, seed=0).train(SYSTEM.targets, discount=SYSTEM.discount, actions="sample")


@pytest.mark.parametrize("name", SYSTEM.targets)
def test_where_features_tell_all_states_apart_weights_are_those_of_tables(fitted, name):
    weight, _, _ = tables(SYSTEM.targets[name])
    found = fitted.influence[0, fitted.names.index(name)]
    np.testing.assert_allclose(found, weight, rtol=0.02, atol=0.05)


@pytest.mark.parametrize("name", SYSTEM.targets)
def test_the_remainder_leads_from_where_training_stopped_to_the_solution(fitted, name):
    _, _, value = tables(SYSTEM.targets[name])
    row = fitted.estimate(name, interval="asymptotic", resamples=1, confidence=0.95, seed=0)
    assert abs(row.value + row.details["remainder"] - value) < 0.1 * abs(row.value - value)
    assert row.lower <= value <= row.upper


@pytest.mark.slow
def test_the_interval_is_as_wide_as_the_luck_of_the_log():
    # What FQE says of many logs spreads as one log's interval tells.
    policy, found, told = SYSTEM.targets["on 0.8"], [], []
    for seed in range(40):
        logs = SYSTEM.sample(SYSTEM.behaviour, episodes=400, seed=100 + seed)
        critics = SMALL.fit(logs, seed=0).train({"it": policy}, discount=SYSTEM.discount, actions="sample")
        row = critics.estimate("it", interval="asymptotic", resamples=1, confidence=0.95, seed=0)
        found.append(row.value + row.details["remainder"])
        told.append(row.standard_error)
    assert np.mean(told) == pytest.approx(np.std(found), rel=0.3)
