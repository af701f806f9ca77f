"""The feed-forward ensemble: members, how they act together, and what padding and clipping do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import norm

from systems import noise_logs
from vlbm.episodes import Episodes
from vlbm.errors import InputError
from vlbm.estimators.worlds.ff import FeedForward
from vlbm.models.base import Outcome
from vlbm.models.feedforward import FeedForwardModel, averaged, picked
from vlbm.windows import WindowSource

LOGS = noise_logs((4, 2, 5), terminated=(True, False, True))
KEY = jax.random.key(7)


def world_for(episodes: Episodes = LOGS, **settings: Any) -> FeedForwardModel:
    sizes = {"members": 3, "units": (6, 5)}
    return FeedForward(**{**sizes, **settings}).make_world(episodes, key=jax.random.key(0))


WORLD = world_for()
POLICIES, EPISODES = 2, 6
# Both policies stand in the same places and do the same, so that only their luck could tell them apart.
START = jnp.broadcast_to(jnp.asarray(LOGS.observation[:EPISODES]), (POLICIES, EPISODES, 2))
ACTION = jnp.broadcast_to(jnp.asarray(LOGS.action[:EPISODES]), (POLICIES, EPISODES, 1))


# Compiled as a whole: a test that runs operation by operation compiles hundreds of them.
@eqx.filter_jit
def step(world: FeedForwardModel, state: Any, action: jax.Array, *, key: jax.Array) -> tuple[Any, Outcome]:
    count = jax.tree.leaves(state)[0].shape[-2]
    return world.step(state, action, luck=world.luck(count, key=key))


emit = eqx.filter_jit(lambda world: world.emit(world.inputs(world.observation.apply(START), ACTION)))
log_likelihood = eqx.filter_jit(FeedForwardModel.log_likelihood)


def imagined(world: FeedForwardModel, steps: int = 3, *, key: jax.Array = KEY) -> list[Any]:
    """What a few steps under the same actions lead to."""
    state, outcomes = world.begin(START, key=key), []
    for time in range(steps):
        state, outcome = step(world, state, ACTION, key=jax.random.fold_in(key, time))
        outcomes.append(outcome)
    return outcomes


def unrolled(**settings: Any) -> list[Any]:
    return imagined(replace(WORLD, imagination=FeedForward(**settings).imagination))


def alone(member: int) -> FeedForwardModel:
    """The ensemble of one of the members."""
    network = jax.tree.map(lambda leaf: leaf[member : member + 1], WORLD.network)
    return replace(WORLD, network=network)


def window_of(episodes: Episodes, steps: int):
    count = episodes.count
    return WindowSource.of(episodes).cut(jnp.arange(count), jnp.zeros(count, int), steps=steps)


# What members say


def test_the_stacked_members_are_the_members_one_by_one():
    together = emit(WORLD)
    for member in range(3):
        expected = jax.tree.leaves(emit(alone(member)))
        for leaf, single in zip(jax.tree.leaves(together), expected, strict=True):
            np.testing.assert_allclose(leaf[member], single[0], rtol=1e-5, atol=1e-6)
    means = np.asarray(together.observation.mean)
    assert np.abs(means[0] - means[1]).max() > 0.1


def test_the_likelihood_is_that_of_changes_rewards_and_endings():
    window = window_of(LOGS, 5)
    emission = eqx.filter_jit(FeedForwardModel.emit)(WORLD, WORLD.read(window)[0])
    seen = np.asarray(WORLD.observation.apply(window.observation), np.float64)
    change = (np.diff(seen, axis=0) - WORLD.change.mean) / WORLD.change.scale
    reward = (np.asarray(window.reward, np.float64) - WORLD.reward.mean) / WORLD.reward.scale
    valid, ended = np.asarray(window.valid), np.asarray(window.ended)
    data = norm.logpdf(change, emission.observation.mean, emission.observation.scale).sum(-1)
    data += norm.logpdf(reward, emission.reward.mean, emission.reward.scale)
    probability = expit(np.asarray(emission.ending.logit))
    ending = np.log(np.where(ended > 0, probability, 1 - probability))
    found = log_likelihood(WORLD, window)
    np.testing.assert_allclose(found.data, (data * valid).sum((1, 2)) / valid.sum(), rtol=1e-4)
    np.testing.assert_allclose(found.ending, (ending * valid).sum((1, 2)) / valid.sum(), rtol=1e-4)


def test_changes_are_standardised_within_episodes_only():
    scaled = np.asarray(WORLD.observation.apply(jnp.asarray(LOGS.observation)))
    parts = np.split(scaled, np.cumsum(LOGS.length + 1)[:-1])
    changes = np.concatenate([np.diff(part, axis=0) for part in parts])
    np.testing.assert_allclose(WORLD.change.mean, changes.mean(axis=0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(WORLD.change.scale, changes.std(axis=0), rtol=1e-4)


@pytest.mark.parametrize("junk", [np.nan, np.inf, 1e30])
def test_padding_contributes_nothing_whatever_it_holds(junk):
    window = window_of(LOGS, 5)
    padding = ~window.observed[..., None]
    spoiled = replace(
        window,
        observation=jnp.where(padding, junk, window.observation),
        action=jnp.where(padding[1:], junk, window.action),
        reward=jnp.where(padding[1:, :, 0], junk, window.reward),
    )
    for found, expected in zip(log_likelihood(WORLD, spoiled), log_likelihood(WORLD, window), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_without_logged_endings_there_are_none():
    world = world_for(noise_logs((4, 4)))
    assert world.network.ending_head is None
    outcome = imagined(world, 1)[0]
    np.testing.assert_array_equal(outcome.ending, 0.0)


# How members act together


def test_the_average_keeps_the_noise_that_members_see():
    emission = emit(WORLD)
    mean, scale = (np.asarray(part, np.float64) for part in jax.tree.leaves(emission.observation))
    average = jax.jit(averaged)(emission)
    np.testing.assert_allclose(average.observation.mean, mean.mean(0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(average.observation.scale, np.sqrt((scale**2).mean(0)), rtol=1e-4)
    chance = expit(np.asarray(emission.ending.logit, np.float64)).mean(0)
    np.testing.assert_allclose(average.ending.probability, chance, rtol=1e-4)


def test_an_episode_stays_with_its_member_and_members_take_turns():
    world = replace(WORLD, imagination=FeedForward(ensemble="episode").imagination)
    member = np.asarray(world.begin(START, key=KEY).member)
    assert sorted(member[0]) == [0, 0, 1, 1, 2, 2]
    np.testing.assert_array_equal(member[0], member[1])
    outcomes = imagined(world)
    for index in range(3):
        expected = imagined(alone(index))
        for outcome, single in zip(outcomes, expected, strict=True):
            for part, other in zip(outcome, single, strict=True):
                np.testing.assert_allclose(
                    np.asarray(part)[member == index],
                    np.asarray(other)[member == index],
                    rtol=1e-4,
                    atol=1e-5,
                )


def test_a_member_may_be_chosen_at_every_step():
    steps = unrolled(ensemble="step")
    singles = [imagined(alone(member), 1)[0] for member in range(3)]
    first = np.asarray(steps[0].reward)
    distance = np.stack([np.abs(first - np.asarray(single.reward)) for single in singles])
    assert distance.min(axis=0).max() < 1e-5
    assert len(np.unique(distance.argmin(axis=0))) > 1
    assert np.abs(np.asarray(steps[-1].reward) - np.asarray(unrolled()[-1].reward)).max() > 1e-3


def test_a_picked_member_is_the_one_that_was_asked_for():
    emission = jax.tree.map(lambda leaf: leaf[:, 0], emit(WORLD))
    member = jnp.array([0, 1, 2, 2, 1, 0])
    chosen = jax.jit(picked)(emission, member)
    for row, index in enumerate(np.asarray(member)):
        np.testing.assert_array_equal(chosen.observation.mean[row], emission.observation.mean[index, row])
        np.testing.assert_array_equal(chosen.reward.scale[row], emission.reward.scale[index, row])
        np.testing.assert_array_equal(chosen.ending.logit[row], emission.ending.logit[index, row])


# What is drawn, and how far it may go


@pytest.mark.parametrize("settings", [{"sampling": "all"}, {"ensemble": "step", "sampling": "all"}])
def test_policies_that_do_the_same_meet_the_same_luck(settings):
    for outcome in unrolled(**settings):
        for part in outcome:
            np.testing.assert_array_equal(part[0], part[1])
        assert len(np.unique(np.asarray(outcome.reward[0]))) == EPISODES


def test_means_do_not_depend_on_the_key_and_draws_do():
    means = [imagined(WORLD, key=jax.random.key(seed))[-1].observation for seed in (1, 2)]
    np.testing.assert_array_equal(*means)
    drawing = replace(WORLD, imagination=FeedForward(sampling="all").imagination)
    draws = [imagined(drawing, key=jax.random.key(seed))[-1].observation for seed in (1, 2)]
    assert np.abs(np.asarray(draws[0] - draws[1])).max() > 0.1


def test_predictions_stay_in_the_logged_range_unless_asked_not_to():
    low, high = LOGS.observation.min(axis=0), LOGS.observation.max(axis=0)
    width = high - low

    def beyond(margin: float | None) -> float:
        far = np.asarray([outcome.observation for outcome in unrolled(sampling="all", clip_margin=margin)])
        return float((np.maximum(low - far, far - high) / width).max())

    assert beyond(0.0) < 1e-5
    assert beyond(0.1) == pytest.approx(0.1, abs=1e-5)
    assert beyond(None) > 0.2


def test_ids_and_one_hot_vectors_are_the_same_action():
    world = world_for(noise_logs((4, 3), choices=3))
    state = world.begin(START, key=KEY)
    ids = jnp.array([[0, 1, 2, 2, 1, 0]] * POLICIES)
    _, by_id = step(world, state, ids, key=KEY)
    _, by_vector = step(world, state, jax.nn.one_hot(ids, 3), key=KEY)
    np.testing.assert_array_equal(by_id.observation, by_vector.observation)
    _, other = step(world, state, (ids + 1) % 3, key=KEY)
    assert np.abs(np.asarray(other.observation - by_id.observation)).max() > 1e-3


def test_it_says_that_it_cannot_begin_from_nothing():
    with pytest.raises(
        InputError, match="FeedForwardModel cannot imagine how an episode begins; give initial"
    ):
        WORLD.begin_from_prior((2, 3), key=KEY)
