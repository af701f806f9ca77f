"""Simulated logs: whole episodes, the same for the same seed, with the density of what was done."""

from __future__ import annotations

import numpy as np
import pytest

from vlbm.policies.function import FunctionPolicy
from vlbm.suites import gym
from vlbm.suites.simulate import LANES, simulate

gymnasium = pytest.importorskip("gymnasium", reason="the extra 'gym' is not installed")
pytest.importorskip("mujoco", reason="the extra 'gym' is not installed")

PENDULUM = {"horizon": 20, "seed": 3}


@pytest.fixture(scope="module")
def policy():
    return gym.load_target_policies("pendulum")["policy_05"]


def falling(observation):
    """Does nothing: a hopper falls within a second."""
    return np.zeros((len(observation), 3), np.float32)


def test_as_many_episodes_as_asked_for(policy):
    assert simulate("Pendulum-v1", policy, episodes=3, **PENDULUM).length.tolist() == [20, 20, 20]
    assert simulate("Pendulum-v1", policy, episodes=LANES + 2, **PENDULUM).count == LANES + 2


def test_steps_are_reached_with_whole_episodes(policy):
    assert simulate("Pendulum-v1", policy, steps=41, **PENDULUM).length.tolist() == [20, 20, 20]
    assert simulate("Pendulum-v1", policy, steps=40, **PENDULUM).length.tolist() == [20, 20]


def test_the_same_seed_gives_the_same_log_and_another_gives_another(policy):
    first, again, other = (
        simulate("Pendulum-v1", policy, episodes=2, horizon=10, seed=seed).fingerprint() for seed in (1, 1, 2)
    )
    assert first == again != other


def test_an_episode_does_not_depend_on_how_many_follow_it(policy):
    few, many = (simulate("Pendulum-v1", policy, episodes=count, **PENDULUM) for count in (2, LANES + 3))
    np.testing.assert_array_equal(few.action, many.select([0, 1]).action)
    np.testing.assert_array_equal(few.observation, many.select([0, 1]).observation)


def test_every_episode_has_luck_of_its_own(policy):
    log = simulate("Pendulum-v1", policy, episodes=LANES + 5, **PENDULUM)
    assert len(np.unique(log.initial_observations(), axis=0)) == log.count
    assert len(np.unique(log.action[log.first_step])) == log.count


def test_sampled_actions_come_with_their_log_density(policy):
    log = simulate("Pendulum-v1", policy, episodes=2, **PENDULUM)
    expected = policy.log_prob(log.observation[log.observation_before], log.action)
    np.testing.assert_allclose(log.log_prob, expected, rtol=1e-5)
    assert simulate("Pendulum-v1", policy, episodes=2, actions="mean", **PENDULUM).log_prob is None


def test_what_is_logged_is_what_gymnasium_does(policy):
    log = simulate("Pendulum-v1", policy, episodes=1, actions="mean", **PENDULUM)
    environment = gymnasium.make("Pendulum-v1")
    environment.reset()
    cosine, sine, speed = log.observation[0].astype(float)
    environment.unwrapped.state = np.array([np.arctan2(sine, cosine), speed])
    for step in range(log.steps):
        observation, reward, _, _, _ = environment.step(log.action[step])
        np.testing.assert_allclose(observation, log.observation[step + 1], atol=2e-4)
        np.testing.assert_allclose(reward, log.reward[step], atol=1e-3)


def test_a_fall_is_a_termination_and_a_time_limit_is_not(policy):
    fallen = simulate("Hopper-v5", FunctionPolicy(falling), episodes=3, horizon=500, seed=0)
    assert fallen.terminated.all()
    assert (fallen.length < 500).all()
    assert not simulate("Pendulum-v1", policy, episodes=1, **PENDULUM).terminated.any()


def test_short_episodes_are_not_preferred():
    """The log is the first episodes in their own order, whichever of them ended first."""
    policy = FunctionPolicy(falling)
    some = simulate("Hopper-v5", policy, steps=60, horizon=500, seed=0)
    more = simulate("Hopper-v5", policy, episodes=some.count, horizon=500, seed=0)
    assert some.length.tolist() == more.length.tolist()
    assert some.length[:-1].sum() < 60 <= some.length.sum()


def test_discrete_actions_are_logged_as_ids():
    def push_right(observation):
        return np.ones(len(observation), np.int64)

    log = simulate("CartPole-v1", FunctionPolicy(push_right), episodes=2, horizon=50, seed=0)
    assert log.n_actions == 2
    assert log.action.shape == (log.steps,)
    assert log.terminated.all()


def test_either_episodes_or_steps_must_be_given(policy):
    with pytest.raises(ValueError, match="either"):
        simulate("Pendulum-v1", policy, **PENDULUM)
