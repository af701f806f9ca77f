"""Influence weights: exact where features are a table of states and actions."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vlbm.estimand import Estimand
from vlbm.estimators.least_squares import influence_weights
from vlbm.estimators.transitions import Problem
from vlbm.suites.exact import chain


class Table(eqx.Module):
    """A feature for every observed state with every action: states are told apart by their largest column."""

    scale: jax.Array

    def features(self, s, a):
        return jnp.outer(jax.nn.one_hot(jnp.argmax(s * self.scale), len(s)), a).ravel()


def test_a_value_that_solves_the_equations_is_the_weighted_mean_of_rewards():
    system = chain()
    log = system.sample(system.behaviour, episodes=4000, seed=0)
    policies = dict(list(system.targets.items())[:2])
    problem = Problem(log, Estimand(system.discount, None, "sample"))
    data = problem.transitions(policies, draws=1, key=jax.random.key(0))
    weight = influence_weights(Table(jnp.ones((len(policies), 1))), data)
    for index, policy in enumerate(policies.values()):
        truth = system.value(policy, discount=system.discount, horizon=None)
        # With a table, LSTD is exact for the empirical system, whose rewards the weights average.
        value = (weight[index] * log.reward).mean()
        assert abs(value - truth) < 0.1 * np.std(log.returns(system.discount)), (value, truth)
        # Weights are ratios of visits: what ends is what begins.
        assert (weight[index] * (1 - problem.continuation)).mean() == pytest.approx(1.0, abs=0.01)
