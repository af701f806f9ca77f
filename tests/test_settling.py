"""Rewards and endings after the loop: the same as step by step."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from systems import noise_logs, random_world
from vlbm.chance import Chance, chance_of
from vlbm.models.branching import BranchingModel
from vlbm.settling import settled

STEPS, POLICIES, EPISODES = 12, 2, 5
KEY = jax.random.key(0)


@pytest.fixture(scope="module")
def world() -> BranchingModel:
    return random_world(
        noise_logs((6, 3, 8), terminated=(True, False, True)), sampling="all", clip_margin=None
    )


@pytest.fixture(scope="module")
def chances(world) -> Chance:
    return jax.vmap(lambda time: chance_of(world, EPISODES, KEY, time))(jnp.arange(STEPS))


def one_by_one(world: BranchingModel, chances: Chance, seats: Any) -> tuple[Any, np.ndarray, np.ndarray]:
    """What a loop leaves to be settled; and the same steps, each settled at once."""
    seen = POLICIES * EPISODES if seats is None else seats.size
    actions = jax.random.normal(jax.random.key(1), (STEPS, POLICIES, seen // POLICIES, 1))
    state = world.begin(jnp.zeros((POLICIES, seen // POLICIES, 2)), key=KEY)
    remains, rewards, endings = [], [], []
    for time in range(STEPS):
        chance = jax.tree.map(lambda leaf, time=time: leaf[time], chances).seated(seats)
        _, _, left = world.advance(state, actions[time], luck=chance.world)
        state, outcome = world.step(state, actions[time], luck=chance.world)
        remains.append(left)
        rewards.append(outcome.reward)
        endings.append(chance.ending < outcome.ending)
    return jnp.stack(remains), np.stack(rewards), np.stack(endings)


@pytest.mark.parametrize("seats", [None, [[4, 1], [0, 3]]])
@pytest.mark.parametrize("at_once", [1, 45, 1000])
def test_many_steps_pay_and_end_as_each_does_alone(monkeypatch, world, chances, at_once, seats):
    monkeypatch.setattr("vlbm.settling.SETTLED", at_once)
    seats = None if seats is None else jnp.asarray(seats)
    remains, rewards, endings = one_by_one(world, chances, seats)
    episodes = POLICIES * EPISODES if seats is None else seats.size
    reward, ended = settled(world, remains, chances, seats, episodes=episodes)
    np.testing.assert_allclose(reward, rewards, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(ended, endings)
    assert 0 < endings.mean() < 1
    assert len(np.unique(rewards)) == rewards.size
