"""Transitions: which steps count, how they go on, and what values are possible."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest

from vlbm.data.episodes import Episodes
from vlbm.errors import InputError
from vlbm.estimand import Estimand
from vlbm.estimators.transitions import Problem
from vlbm.policies import FunctionPolicy

# Two episodes of 3 and 2 steps; the second was ended by the system.
LOG = Episodes(
    observation=np.arange(7, dtype=np.float32)[:, None],
    action=np.linspace(-1, 1, 5, dtype=np.float32)[:, None],
    reward=np.array([1.0, 2.0, 3.0, -1.0, 4.0], np.float32),
    length=np.array([3, 2]),
    terminated=np.array([False, True]),
)
POLICY = FunctionPolicy(lambda observation: 0.1 * observation[:, :1])


def test_an_episode_goes_on_by_the_discount_unless_the_system_or_the_horizon_ended_it():
    np.testing.assert_allclose(
        Problem(LOG, Estimand(0.9, None, "mean")).continuation, [0.9, 0.9, 0.9, 0.9, 0.0]
    )
    limited = Problem(LOG, Estimand(0.9, 2, "mean"))
    np.testing.assert_array_equal(limited.step, [0, 1, 3, 4])
    np.testing.assert_allclose(limited.continuation, [0.9, 0.0, 0.9, 0.0])


def test_time_is_an_observation_only_where_the_horizon_matters():
    options = {"draws": 1, "key": jax.random.key(0)}
    policies = {"it": POLICY}
    assert Problem(LOG, Estimand(0.9, None, "mean")).transitions(policies, **options).observation.shape == (
        7,
        1,
    )
    limited = Problem(LOG, Estimand(0.9, 3, "mean")).transitions(policies, **options)
    # Time in the units of a uniform distribution over the horizon.
    np.testing.assert_allclose(
        limited.observation[:, 1], np.sqrt(12) * (np.array([0, 1, 2, 3, 0, 1, 2]) / 3 - 0.5), rtol=1e-5
    )
    # 0.5^20 of an endless value lies beyond.
    assert Problem(LOG, Estimand(0.5, 20, "mean")).limit is None


def test_what_can_be_earned_follows_from_the_rewards_the_time_left_and_the_endings():
    problem = Problem(LOG, Estimand(1.0, 3, "mean"))
    low, high = problem.value_range(np.array([0, 2, 3]))
    np.testing.assert_allclose(high, [12.0, 4.0, 0.0])
    np.testing.assert_allclose(low, [-3.0, -1.0, 0.0])
    endless = Problem(replace(LOG, reward=np.full(5, 2.0, np.float32)), Estimand(0.5, None, "mean"))
    low, high = endless.value_range(np.array([0]))
    # At best it never ends; at worst it ends with the first reward.
    assert (low[0], high[0]) == (2.0, 4.0)


def test_the_end_rate_is_one_over_the_steps_that_an_episode_lasts():
    assert Problem(
        replace(LOG, terminated=np.zeros(2, bool)), Estimand(0.9, None, "mean")
    ).end_rate == pytest.approx(0.1)
    assert Problem(LOG, Estimand(0.9, None, "mean")).end_rate == pytest.approx((4 * 0.1 + 1) / 5)
    assert Problem(LOG, Estimand(1.0, 9, "mean")).end_rate == pytest.approx(1 / 5)


def test_a_batch_holds_steps_with_what_came_of_them_and_what_policies_do_there():
    problem = Problem(LOG, Estimand(0.9, None, "mean"))
    data = problem.transitions({"it": POLICY, "other": POLICY}, draws=1, key=jax.random.key(0))
    batch = data.draw(200, jax.random.key(1))
    step = np.searchsorted(np.sort(LOG.reward), np.asarray(batch.reward))
    step = np.argsort(LOG.reward)[step]
    before = LOG.observation_before[step]
    np.testing.assert_array_equal(batch.s, np.asarray(data.observation)[before])
    np.testing.assert_array_equal(batch.next_s, np.asarray(data.observation)[before + 1])
    np.testing.assert_allclose(batch.continuation, problem.continuation[step], rtol=1e-6)
    assert batch.next_a.shape == (200, 2, 1)
    raw = problem.raw_actions(data, before + 1)
    np.testing.assert_allclose(raw[:, 0, 0], 0.1 * LOG.observation[before + 1, 0], rtol=1e-4, atol=1e-5)
    assert set(np.unique(batch.initial_s)) == set(np.asarray(data.observation)[[0, 4], 0])


def test_nothing_is_learnt_from_episodes_that_are_held_out():
    problem = Problem(LOG, Estimand(0.9, None, "mean"), held_out=np.array([True, False]))
    data = problem.transitions({"it": POLICY}, draws=1, key=jax.random.key(0))
    assert set(np.unique(data.draw(100, jax.random.key(1)).reward)) == {-1.0, 4.0}
    assert data.steps == 5  # though all are still there to be judged


def test_rewards_that_are_not_finite_are_refused():
    with pytest.raises(InputError, match="reward: some are not finite"):
        Problem(replace(LOG, reward=np.array([1, np.nan, 0, 0, 0], np.float32)), Estimand(0.9, None, "mean"))


# The first episode's final observation was not recorded.
UNFINISHED = replace(LOG, final_observed=np.array([False, True]), reward=np.float32([9, 8, 1, -1, 4]))


def test_a_step_whose_outcome_is_unknown_is_left_out_and_said_so():
    problem = Problem(UNFINISHED, Estimand(0.9, None, "mean"))
    np.testing.assert_array_equal(problem.step, [0, 1, 3, 4])
    np.testing.assert_allclose(problem.continuation, [0.9, 0.9, 0.9, 0.0])
    (said,) = problem.warnings()
    assert "the last step of 1 of 2 episodes: this method leaves these steps out, with 4.3%" in said
    data = problem.transitions({"it": POLICY}, draws=1, key=jax.random.key(0))
    assert set(np.unique(data.draw(100, jax.random.key(1)).reward)) == {9, 8, -1, 4}


def test_a_step_that_reaches_the_horizon_needs_no_outcome():
    problem = Problem(UNFINISHED, Estimand(0.9, 3, "mean"))
    np.testing.assert_array_equal(problem.step, [0, 1, 2, 3, 4])
    np.testing.assert_allclose(problem.continuation, [0.9, 0.9, 0.0, 0.9, 0.0])
    assert problem.warnings() == []


def test_a_problem_without_the_steps_that_earn_most_is_refused():
    final = replace(UNFINISHED, reward=np.float32([0, 0, 9, 0, 1]))
    with pytest.raises(InputError, match="90% of the reward, and this method cannot learn from such steps"):
        Problem(final, Estimand(0.9, None, "mean"))
    assert len(Problem(final, Estimand(0.9, 3, "mean")).step) == 5
