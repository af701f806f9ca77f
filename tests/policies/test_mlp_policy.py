"""Perceptron policies against NumPy, SciPy and integrals."""

from __future__ import annotations

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from vlbm.errors import InputError
from vlbm.policies import FunctionPolicy, Policy, has_log_prob

# Compiled once for each shape of policy, which is quicker than step by step.
mean = eqx.filter_jit(lambda policy, observation: policy.mean(observation))
sample = eqx.filter_jit(lambda policy, observation, key: policy.sample(observation, key=key))
log_prob = eqx.filter_jit(lambda policy, observation, action: policy.log_prob(observation, action))

NUMPY_NONLINEARITIES = {
    "relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
    "elu": lambda x: np.where(x > 0, x, np.expm1(x)),
    "leaky_relu": lambda x: np.where(x > 0, x, 0.01 * x),
    "silu": lambda x: x / (1 + np.exp(-x)),
}


def heads_in_numpy(policy, observation):
    features = observation.astype(np.float64)
    for layer in policy.hidden:
        weight, bias = np.asarray(layer.weight, np.float64), np.asarray(layer.bias, np.float64)
        features = NUMPY_NONLINEARITIES[policy.nonlinearity](features @ weight.T + bias)
    heads = [policy.head] + ([policy.log_std_head] if policy.log_std_head is not None else [])
    return [features @ np.asarray(head.weight, np.float64).T + np.asarray(head.bias) for head in heads]


@pytest.mark.parametrize("nonlinearity", NUMPY_NONLINEARITIES)
@pytest.mark.parametrize("hidden", [(), (7,), (8, 5), (4, 4, 4)])
def test_the_mean_is_the_forward_pass(make_policy, observation, hidden, nonlinearity):
    policy = make_policy(hidden=hidden, nonlinearity=nonlinearity, distribution="gaussian")
    expected, _ = heads_in_numpy(policy, observation)
    np.testing.assert_allclose(mean(policy, observation), expected, rtol=1e-5, atol=1e-6)


def test_the_squashed_mean_is_scaled_and_shifted(make_policy, observation):
    policy = make_policy(action_scale=[2.0, 0.5], action_offset=[1.0, -1.0])
    expected = np.tanh(heads_in_numpy(policy, observation)[0]) * [2.0, 0.5] + [1.0, -1.0]
    np.testing.assert_allclose(mean(policy, observation), expected, rtol=1e-5, atol=1e-6)


def test_gaussian_actions_are_not_bounded_unless_asked(make_policy):
    far = np.full((1, 3), 100.0, np.float32)
    free = make_policy(distribution="gaussian")
    clipped = make_policy(distribution="gaussian", action_low=-1.0, action_high=1.0)
    assert np.abs(mean(free, far)).max() > 1
    np.testing.assert_array_equal(mean(clipped, far), np.clip(mean(free, far), -1, 1))


def test_the_gaussian_density_is_scipys(make_policy, observation):
    policy = make_policy(distribution="gaussian", action_scale=3.0, action_offset=1.0)
    action = np.random.default_rng(2).normal(size=(6, 2))
    center, log_std = heads_in_numpy(policy, observation)
    expected = scipy.stats.norm.logpdf(action, 3 * center + 1, 3 * np.exp(log_std)).sum(-1)
    np.testing.assert_allclose(log_prob(policy, observation, action), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("settings", [{}, {"action_scale": [2.0, 0.5], "action_offset": [1.0, -1.0]}])
@pytest.mark.parametrize("bounds", [{}, {"log_std_min": -1.0, "log_std_max": -0.4}])
def test_the_squashed_density_integrates_to_one(make_policy, observation, settings, bounds):
    policy = make_policy(**settings, **bounds)
    nodes, weights = np.polynomial.legendre.leggauss(160)
    scale, offset = np.asarray(policy.action_scale), np.asarray(policy.action_offset)
    unit = np.array(list(itertools.product(nodes, nodes)))
    area = np.outer(weights, weights).ravel() * scale.prod()
    density = np.exp(log_prob(policy, np.repeat(observation[:1], len(unit), axis=0), unit * scale + offset))
    assert np.sum(density * area) == pytest.approx(1, abs=1e-3)


def test_the_squashed_density_is_finite_on_and_past_the_boundary(make_policy, observation):
    policy = make_policy(action_scale=2.0)
    for edge in (-2.0, 2.0, 2.0001):
        assert np.isfinite(log_prob(policy, observation, np.full((6, 2), edge))).all()
    slope = jax.grad(lambda action: log_prob(policy, observation, action).sum())(jnp.full((6, 2), 2.0))
    assert np.isfinite(slope).all()


def test_samples_have_the_moments_of_the_heads(make_policy, observation):
    policy = make_policy(distribution="gaussian", log_std_max=-0.3)
    rows = np.repeat(observation[:1], 40_000, axis=0)
    drawn = np.asarray(sample(policy, rows, jax.random.key(0)))
    center, log_std = heads_in_numpy(policy, observation[:1])
    std = np.exp(np.minimum(log_std, -0.3))
    np.testing.assert_allclose(drawn.mean(0), center[0], atol=5 * std.max() / 200)
    np.testing.assert_allclose(drawn.std(0), std[0], rtol=0.03)


def test_squashed_samples_lie_inside_and_follow_the_density(make_policy, observation):
    policy = make_policy(action_scale=2.0, actions=1)
    rows = np.repeat(observation[:1], 20_000, axis=0)
    drawn = np.asarray(sample(policy, rows, jax.random.key(0)))
    assert np.abs(drawn).max() <= 2
    center, log_std = heads_in_numpy(policy, observation[:1])
    untanh = np.arctanh(np.clip(drawn[:, 0] / 2, -1 + 1e-6, 1 - 1e-6))
    test = scipy.stats.kstest(untanh, scipy.stats.norm(center[0, 0], np.exp(log_std[0, 0])).cdf)
    assert test.pvalue > 1e-3


def test_categorical_policies_choose_ids(make_policy, observation):
    policy = make_policy(distribution="categorical", actions=4, spread=False)
    logits = heads_in_numpy(policy, observation)[0]
    choice = mean(policy, observation)
    assert choice.dtype == jnp.int32
    np.testing.assert_array_equal(choice, logits.argmax(-1))
    ids = np.arange(4)
    expected = scipy.special.log_softmax(logits, axis=-1)
    for id in ids:
        ours = log_prob(policy, observation, np.full(6, id, np.int32))
        np.testing.assert_allclose(ours, expected[:, id], rtol=1e-4, atol=1e-6)
    drawn = sample(policy, np.repeat(observation[:1], 40_000, axis=0), jax.random.key(0))
    assert drawn.dtype == jnp.int32
    frequency = np.bincount(drawn, minlength=4) / 40_000
    np.testing.assert_allclose(frequency, np.exp(expected[0]), atol=0.015)


def test_greedy_policies_explore_as_often_as_they_say(make_policy, observation):
    policy = make_policy(distribution="greedy", actions=4, spread=False, exploration=0.2)
    best = int(mean(policy, observation[:1])[0])
    drawn = sample(policy, np.repeat(observation[:1], 40_000, axis=0), jax.random.key(0))
    expected = np.full(4, 0.05) + 0.8 * (np.arange(4) == best)
    np.testing.assert_allclose(np.bincount(drawn, minlength=4) / 40_000, expected, atol=0.015)
    ours = log_prob(policy, np.repeat(observation[:1], 4, axis=0), np.arange(4))
    np.testing.assert_allclose(np.exp(ours), expected, rtol=1e-5)


def test_without_a_log_std_head_a_policy_is_deterministic(make_policy, observation):
    policy = make_policy(spread=False)
    np.testing.assert_array_equal(sample(policy, observation, jax.random.key(0)), mean(policy, observation))
    assert not has_log_prob(policy)
    assert has_log_prob(make_policy())
    with pytest.raises(TypeError, match="deterministic"):
        log_prob(policy, observation, mean(policy, observation))


def test_policies_with_and_without_settings_stack_into_one(make_policy, observation):
    policies = [
        make_policy(seed=0),
        make_policy(seed=1, log_std_min=-5.0, log_std_max=2.0),
        make_policy(seed=2, action_scale=[2.0, 3.0], action_offset=0.5),
    ]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *policies)
    means = eqx.filter_vmap(lambda policy: mean(policy, observation))(stacked)
    keys = jax.random.split(jax.random.key(0), 3)
    samples = eqx.filter_vmap(lambda policy, key: sample(policy, observation, key))(stacked, keys)
    for index, policy in enumerate(policies):
        np.testing.assert_allclose(means[index], mean(policy, observation), rtol=1e-5, atol=1e-6)
        alone = sample(policy, observation, keys[index])
        np.testing.assert_allclose(samples[index], alone, rtol=1e-5, atol=1e-6)


def test_every_leaf_is_an_array(make_policy):
    assert all(eqx.is_array(leaf) for leaf in jax.tree.leaves(make_policy()))


def test_sizes_are_known_and_the_protocol_is_met(make_policy):
    policy = make_policy(observations=3, actions=2)
    assert (policy.observation_size, policy.action_size, policy.discrete) == (3, 2, False)
    assert isinstance(policy, Policy)
    assert isinstance(FunctionPolicy(lambda observation: observation), Policy)


@pytest.mark.parametrize("setting", ["nonlinearity", "distribution"])
def test_unknown_names_are_refused_with_the_known_ones(make_policy, setting):
    with pytest.raises(InputError, match=r"'cubic' is not known; known are .*(tanh|gaussian)"):
        make_policy(**{setting: "cubic"})
