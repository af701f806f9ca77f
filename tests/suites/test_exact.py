"""Exact systems: published figures, Bellman's equations, and what simulation says."""

from __future__ import annotations

from functools import cache

import jax
import numpy as np
import pytest

from vlbm.errors import InputError
from vlbm.policies import TracedPolicy, check_fit, has_log_prob
from vlbm.policies.stacked import StackedPolicies
from vlbm.suites.exact import SYSTEMS, TabularPolicy, TabularSystem, chain, cliff, graph, linear, true_values
from vlbm.suites.exact.cliff import epsilon_policy
from vlbm.suites.exact.graph import odd_policy

TABULAR = ["chain", "graph", "cliff"]


@cache
def system_named(name: str):
    if name == "sepsis":
        pytest.importorskip("icu_sepsis", reason="the extra 'sepsis' is not installed")
    return SYSTEMS[name]()


@pytest.mark.parametrize(
    ("error", "value"), [(0.0, -2.497664), (0.2, -6.343868), (0.5, -17.523868), (0.8, -48.331457)]
)
def test_the_cliff_walk_has_the_published_values(error, value):
    assert cliff().value(epsilon_policy(error), discount=0.99, horizon=None) == pytest.approx(value, abs=1e-6)


def test_the_graph_has_the_published_values():
    policy = odd_policy(0.2)
    for system, value in (
        (graph(), -1.1644776),
        (graph(sparse=True), -0.2823576),
        (graph(slip=0.0), -2.3289552),
    ):
        assert system.value(policy, discount=0.98, horizon=None) == pytest.approx(value, abs=1e-6)
        assert system.value(policy, discount=0.98, horizon=4) == pytest.approx(value, abs=1e-6)


@pytest.mark.parametrize("name", TABULAR)
def test_a_long_horizon_comes_to_what_the_linear_solve_gives(name):
    system = system_named(name)
    for policy in list(system.targets.values())[::2]:
        forever = system.value(policy, discount=0.9, horizon=None)
        assert system.value(policy, discount=0.9, horizon=400) == pytest.approx(forever, abs=1e-9)
        assert system.value(policy, discount=0.9, horizon=3) != pytest.approx(forever, abs=1e-3)


@pytest.mark.parametrize("name", [*TABULAR, "linear", "sepsis"])
def test_simulated_returns_average_to_the_exact_value(name):
    system = system_named(name)
    for index, policy in enumerate([system.behaviour, *system.targets.values()][:3]):
        sampled = system.sample(policy, episodes=1000 if name == "sepsis" else 20_000, seed=index)
        returns = sampled.returns(system.discount)
        error = returns.std(ddof=1) / np.sqrt(len(returns))
        value = system.value(policy, discount=system.discount, horizon=system.horizon)
        assert abs(returns.mean() - value) < 4 * error


@pytest.mark.parametrize("horizon", [7, None])
@pytest.mark.parametrize("name", TABULAR)
def test_q_averages_to_v_and_steps_to_the_next_v(name, horizon):
    system = system_named(name)
    assert isinstance(system, TabularSystem)
    policy = next(iter(system.targets.values()))
    values = system.state_values(policy, discount=0.9, horizon=horizon)
    actions = system.action_values(policy, discount=0.9, horizon=horizon)
    running = ~system.terminal
    np.testing.assert_allclose(
        (policy.probability * actions).sum(axis=-1)[:, running], values[:, running], atol=1e-12
    )
    state = int(np.flatnonzero(running)[2])
    reward = np.broadcast_to(system.reward, system.transition.shape)[state, 1]
    following = (values[0] if horizon is None else values[1]) * running
    assert actions[0, state, 1] == pytest.approx(
        system.transition[state, 1] @ (reward + 0.9 * following), abs=1e-12
    )


@pytest.mark.parametrize("name", ["graph", "linear"])
@pytest.mark.parametrize("horizon", [4, None])
def test_one_step_of_simulation_and_v_average_to_q(name, horizon):
    """E[r + discount * V(s')] given (s, a) is Q(s, a): so the mean temporal difference is zero."""
    system = system_named(name)
    policy = next(iter(system.targets.values()))
    options = {"discount": 0.9, "horizon": horizon}
    state, action = system.state_function(policy, **options), system.action_function(policy, **options)
    logged = system.sample(system.behaviour, episodes=20_000, seed=0, horizon=4)
    row, time = logged.observation_before, logged.time
    ahead = state(logged.observation[row + 1], time + 1)
    over = (time == 3) if horizon is not None or name == "graph" else np.zeros(logged.steps, bool)
    target = logged.reward + 0.9 * np.where(over, 0.0, ahead)
    difference = target - action(logged.observation[row], logged.action, time)
    for step in range(4):
        at = difference[time == step]
        assert abs(at.mean()) < 4 * at.std() / np.sqrt(len(at)) + 1e-6


def test_linear_values_are_those_of_propagated_moments():
    system = linear()
    for policy in system.targets.values():
        mean, covariance, total = system.initial_mean, system.initial_covariance, 0.0
        closed = system.drift + system.drive @ policy.gain
        spread = np.diag(policy.scale**2)
        for time in range(6):
            action = policy.gain @ mean + policy.offset
            cost = mean @ system.state_cost @ mean + np.trace(system.state_cost @ covariance)
            shaken = policy.gain @ covariance @ policy.gain.T + spread
            cost += action @ system.action_cost @ action + np.trace(system.action_cost @ shaken)
            total -= 0.95**time * cost
            mean = closed @ mean + system.drive @ policy.offset
            covariance = (
                closed @ covariance @ closed.T + system.drive @ spread @ system.drive.T + system.noise
            )
        assert system.value(policy, discount=0.95, horizon=6) == pytest.approx(total, abs=1e-10)


def test_linear_values_without_a_horizon_are_the_limit():
    system = linear()
    for policy in system.targets.values():
        forever = system.value(policy, discount=0.9, horizon=None)
        assert system.value(policy, discount=0.9, horizon=500) == pytest.approx(forever, abs=1e-9)
    with pytest.raises(InputError, match="give a horizon"):
        system.value(system.behaviour, discount=1.0, horizon=None)


@pytest.mark.parametrize("name", [*TABULAR, "linear"])
def test_logged_log_probabilities_are_the_policies_own(name):
    system = system_named(name)
    logged = system.sample(system.behaviour, episodes=50, seed=0)
    found = system.behaviour.log_prob(logged.observation[logged.observation_before], logged.action)
    np.testing.assert_allclose(np.asarray(found), logged.log_prob, atol=1e-5)


@pytest.mark.parametrize("name", [*TABULAR, "linear"])
def test_policies_fit_the_data_stack_and_sample_what_they_say(name):
    system = system_named(name)
    logged = system.sample(system.behaviour, episodes=2, seed=0)
    check_fit(
        system.targets,
        observation_size=logged.observation_size,
        action_size=logged.action_size,
        discrete=logged.discrete,
    )
    policies = list(system.targets.values())
    assert all(isinstance(policy, TracedPolicy) and has_log_prob(policy) for policy in policies)
    assert len(StackedPolicies.of(policies).groups) == 1
    seen = np.repeat(logged.observation[1][None], 4000, axis=0)
    drawn = np.asarray(policies[0].sample(seen, key=jax.random.key(0)))
    if logged.discrete:
        row = policies[0].probability[logged.observation[1].argmax()]
        share = np.bincount(drawn, minlength=len(row)) / len(drawn)
        np.testing.assert_allclose(share, row, atol=0.04)
        assert np.asarray(policies[0].mean(seen))[0] == row.argmax()
    else:
        np.testing.assert_allclose(drawn.mean(axis=0), np.asarray(policies[0].mean(seen))[0], atol=0.04)
        np.testing.assert_allclose(drawn.std(axis=0), policies[0].scale, atol=0.04)


def test_episodes_end_where_the_system_ends_them():
    system = cliff(horizon=20)
    logged = system.sample(system.behaviour, episodes=200, seed=0)
    assert 0 < logged.terminated.mean() < 1
    last = logged.observation[logged.first_observation + logged.length].argmax(axis=1)
    np.testing.assert_array_equal(logged.terminated, last == 47)
    assert (logged.length[~logged.terminated] == 20).all()
    assert set(logged.reward[logged.first_step + logged.length - 1][logged.terminated]) == {10.0}
    assert logged.n_actions == 4


def test_sampling_is_a_function_of_the_seed():
    system = chain()
    first, again, other = (system.sample(system.behaviour, episodes=20, seed=seed) for seed in (1, 1, 2))
    assert first.fingerprint() == again.fingerprint() != other.fingerprint()


def test_an_action_of_probability_zero_is_never_taken_and_has_log_probability_minus_infinity():
    system = chain()
    never = TabularPolicy(np.tile([0.0, 1.0], (5, 1)))
    assert (system.sample(never, episodes=100, seed=0).action == 1).all()
    assert np.isneginf(np.asarray(never.log_prob(np.eye(5), np.zeros(5, int)))).all()


def test_probabilities_that_do_not_sum_to_one_are_refused():
    with pytest.raises(InputError, match="sum to 1"):
        TabularPolicy(np.full((2, 2), 0.4))


def test_sepsis_is_a_system_of_716_states_and_better_treatment_is_worth_more():
    system = system_named("sepsis")
    assert isinstance(system, TabularSystem)
    assert (system.states, system.actions) == (716, 25)
    np.testing.assert_allclose(system.transition.sum(axis=-1), 1.0)
    worth = true_values(system, discount=1.0, horizon=None)
    clinicians = system.value(system.behaviour, discount=1.0, horizon=None)
    # Nearly everybody is survived or dead in the end: the value is the chance to survive.
    assert 0.7 < clinicians < 0.9
    assert clinicians < worth["better 0.1"] < worth["better 0.2"] < 1
