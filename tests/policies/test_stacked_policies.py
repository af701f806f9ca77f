"""Policies stacked by shape act as each would alone."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from vlbm.policies.stacked import StackedPolicies, act_once

KEY = jax.random.key(0)


@pytest.fixture
def policies(make_policy):
    """Of three shapes, none of which stand together."""
    return [
        make_policy(seed=0),
        make_policy(seed=1, hidden=(4, 5)),
        make_policy(seed=2),
        make_policy(seed=3, distribution="gaussian"),
        make_policy(seed=4, hidden=(4, 5)),
    ]


def test_policies_of_one_shape_and_kind_are_one_group(policies):
    assert StackedPolicies.of(policies).members == ((0, 2), (1, 4), (3,))


@pytest.mark.parametrize("actions", ["mean", "sample"])
def test_each_acts_as_it_would_alone_and_in_its_own_place(policies, observation, actions):
    seen = np.stack([observation + index for index in range(len(policies))])
    acted = StackedPolicies.of(policies).act(seen, actions=actions, key=KEY)
    for index, policy in enumerate(policies):
        alone = policy.mean(seen[index]) if actions == "mean" else policy.sample(seen[index], key=KEY)
        np.testing.assert_allclose(acted[index], alone, rtol=1e-5, atol=1e-6)
    assert len(np.unique(np.asarray(acted)[:, 0, 0])) == len(policies)


def test_what_is_done_once_is_what_is_done_among_many(make_policy, observation):
    policy = make_policy()
    for row, expected in zip(observation, policy.mean(observation), strict=True):
        np.testing.assert_allclose(act_once(policy, row, "mean", KEY), expected, rtol=1e-5, atol=1e-6)
    drawn = act_once(policy, observation[0], "sample", KEY)
    np.testing.assert_array_equal(drawn, policy.sample(observation[:1], key=KEY)[0])
    assert (drawn != act_once(policy, observation[0], "sample", jax.random.key(1))).all()


def test_ids_of_discrete_actions_stay_ids(make_policy, observation):
    policies = [make_policy(seed=seed, distribution="categorical", spread=False) for seed in range(2)]
    acted = StackedPolicies.of(policies).act(np.stack([observation] * 2), actions="mean", key=KEY)
    assert acted.shape == (2, len(observation))
    assert np.issubdtype(acted.dtype, np.integer)
    assert act_once(policies[0], observation[0], "mean", KEY).shape == ()
