"""The variational power method: power steps end in the exact ratio, and bad settings are named."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vlbm.data.episodes import Episodes
from vlbm.errors import InputError
from vlbm.estimators.vpm import VPM, power_loss, take_power_steps
from vlbm.policies import FunctionPolicy

LENGTH = 6
SMALL = VPM(units=(16,), rounds=1, steps=40, batch=64, resamples=200)


def two_states(*, episodes: int = 200, terminated: bool = False) -> Episodes:
    """Action 0.5 leads to state 1 and -0.5 to state 0; being asked in state 1 pays 1. All start in 0."""
    random = np.random.default_rng(0)
    action = random.choice([-0.5, 0.5], size=(episodes, LENGTH))
    state = np.concatenate([np.zeros((episodes, 1)), action > 0], axis=1)
    return Episodes(
        observation=state.reshape(-1, 1).astype(np.float32),
        action=action.reshape(-1, 1).astype(np.float32),
        reward=state[:, :-1].ravel().astype(np.float32),
        length=np.full(episodes, LENGTH),
        terminated=np.full(episodes, terminated),
    )


class Exact:
    """Four states that 1000 logged steps leave in these shares, each for a state by the policy's chances."""

    def __init__(self) -> None:
        self.discount, self.begins = 0.9, np.array([0.5, 0.5, 0.0, 0.0])
        self.step = np.random.default_rng(1).dirichlet(np.ones(4), size=4)
        self.leaves = np.repeat(np.arange(4), [400, 300, 200, 100])
        self.logged = np.bincount(self.leaves) / len(self.leaves)
        self.continuation = jnp.full(len(self.leaves), self.discount)
        visits = np.linalg.solve(np.eye(4) - self.discount * self.step.T, self.begins)
        self.ratio = (1 - self.discount) * visits / self.logged


def test_the_loss_of_power_steps_leads_to_the_stationary_ratio():
    exact = Exact()

    def loss(ratio: jax.Array, before: jax.Array) -> jax.Array:
        led, begun = jnp.asarray(exact.step)[exact.leaves] @ ratio, jnp.asarray(exact.begins) @ ratio
        return power_loss(
            ratio=ratio[exact.leaves],
            next_ratio=led,
            initial_ratio=begun,
            before=before[exact.leaves],
            continuation=exact.continuation,
        )

    ratio, slope = jnp.ones(4), jax.jit(jax.grad(loss))
    for _ in range(200):
        # The loss is a parabola in every entry, with the logged share as its curvature: one step solves it.
        ratio = ratio - slope(ratio, ratio) / jnp.asarray(exact.logged)
    np.testing.assert_allclose(ratio, exact.ratio, rtol=1e-4)


def test_with_a_feature_for_every_state_power_steps_end_in_the_stationary_ratio():
    exact = Exact()
    phi, next_phi = np.eye(4)[exact.leaves], exact.step[exact.leaves]
    given = (jnp.asarray(part, jnp.float32) for part in (phi, next_phi, exact.begins))
    theta = np.asarray(take_power_steps(*given, exact.continuation))
    np.testing.assert_allclose(theta / (exact.logged @ theta), exact.ratio, rtol=2e-3)


def test_action_vectors_and_ends_are_weighed_exactly():
    policies = {
        name: FunctionPolicy(lambda observation, sign=sign: np.full((len(observation), 1), 0.5 * sign))
        for name, sign in (("to 1", 1.0), ("to 0", -1.0))
    }
    # The first policy is in state 1 from the second step on, the other one never.
    for terminated, stays in ((False, 1.0), (True, 1 - 1 / LENGTH)):
        fitted = SMALL.fit(two_states(terminated=terminated))
        there, never = fitted.evaluate(policies, discount=0.8, horizon=math.inf)
        assert there.value == pytest.approx(0.8 * stays / (1 - 0.8 * stays), rel=0.1 if stays == 1 else 0.2)
        assert abs(never.value) < 0.2


@pytest.mark.parametrize(("setting", "value"), [("averaging", 0.0), ("self_normalised", False), ("batch", 0)])
def test_bad_settings_are_named(setting, value):
    with pytest.raises(InputError, match=setting):
        VPM(**{setting: value})
