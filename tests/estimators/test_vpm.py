"""The variational power method: power steps end in the exact ratio, and bad settings are named."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vlbm.episodes import Episodes
from vlbm.errors import InputError
from vlbm.estimators.vpm import VPM, power_loss
from vlbm.policies import FunctionPolicy

LENGTH = 6
SMALL = VPM(units=(16,), rounds=2, steps=500, batch=64, learning_rate=1e-2, resamples=200)


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


def test_power_steps_end_in_the_stationary_ratio():
    # States are left in these shares of 1000 logged steps, each for a state by the policy's own chances.
    random = np.random.default_rng(1)
    step, discount = random.dirichlet(np.ones(4), size=4), 0.9
    leaves = np.repeat(np.arange(4), [400, 300, 200, 100])
    begins = np.array([0.5, 0.5, 0.0, 0.0])
    logged = np.bincount(leaves) / len(leaves)

    def loss(ratio: jax.Array, before: jax.Array) -> jax.Array:
        led = jnp.asarray(step)[leaves] @ ratio
        continuation = jnp.full(len(leaves), discount)
        return power_loss(ratio[leaves], led, jnp.asarray(begins) @ ratio, before[leaves], continuation)

    ratio = jnp.ones(4)
    for _ in range(200):
        # The loss is a parabola in every entry, with the logged share as its curvature: one step solves it.
        ratio = ratio - jax.grad(loss)(ratio, ratio) / jnp.asarray(logged)
    visits = (1 - discount) * np.linalg.solve(np.eye(4) - discount * step.T, begins)
    np.testing.assert_allclose(ratio, visits / logged, rtol=1e-4)


@pytest.mark.slow
def test_action_vectors_and_ends_are_weighed_exactly():
    policies = {
        name: FunctionPolicy(lambda observation, sign=sign: np.full((len(observation), 1), 0.5 * sign))
        for name, sign in (("to 1", 1.0), ("to 0", -1.0))
    }
    # The first policy is in state 1 from the second step on, the other one never.
    for terminated, stays in ((False, 1.0), (True, 1 - 1 / LENGTH)):
        fitted = SMALL.fit(two_states(terminated=terminated))
        there, never = fitted.evaluate(policies, discount=0.8)
        assert there.value == pytest.approx(0.8 * stays / (1 - 0.8 * stays), rel=0.1 if stays == 1 else 0.2)
        assert abs(never.value) < 0.2


@pytest.mark.parametrize(("setting", "value"), [("averaging", 0.0), ("self_normalised", False), ("batch", 0)])
def test_bad_settings_are_named(setting, value):
    with pytest.raises(InputError, match=setting):
        VPM(**{setting: value})
