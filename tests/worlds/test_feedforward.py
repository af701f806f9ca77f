"""The feed-forward ensemble: members, how they act together, and what drawing and clipping do."""

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
from vlbm.data.episodes import Episodes
from vlbm.data.sampler import Sampler, Window, WindowStarts
from vlbm.data.view import EpisodeView
from vlbm.errors import InputError
from vlbm.estimators.world_models.feedforward import FeedForward
from vlbm.worlds.base import Outcome
from vlbm.worlds.feedforward import FeedForwardWorld, average

LOGS = noise_logs((4, 2, 5), terminated=(True, False, True))
MEMBERS, EPISODES = 3, 8
START = jnp.asarray(LOGS.observation[:EPISODES])
ACTION = jnp.asarray(LOGS.action[:EPISODES])
KEYS = jax.random.split(jax.random.key(7), EPISODES)


def world_for(episodes: Episodes = LOGS, **settings: Any) -> FeedForwardWorld:
    sizes = {"members": MEMBERS, "units": (6, 5)}
    return FeedForward(**{**sizes, **settings}).make_world(episodes, key=jax.random.key(0))


@pytest.fixture(scope="module")
def world() -> FeedForwardWorld:
    return world_for()


# Compiled as a whole: a test that runs operation by operation compiles hundreds of them.
@eqx.filter_jit
def reset(world: FeedForwardWorld, keys: jax.Array) -> Any:
    return jax.vmap(lambda seen, key: world.reset(seen, world.draw_noise(key)))(START, keys)


@eqx.filter_jit
def step(world: FeedForwardWorld, state: Any, action: jax.Array, keys: jax.Array) -> tuple[Any, Outcome]:
    one = lambda state, action, key: world.step(state, action, world.draw_noise(key))  # noqa: E731
    return jax.vmap(one)(state, action, keys)


@eqx.filter_jit
def predict(world: FeedForwardWorld):
    """Every member's prediction of every step; members come first."""
    inputs = jax.vmap(lambda seen, action: world.inputs(world.observation.apply(seen), action))(START, ACTION)
    return jax.vmap(world.predict, out_axes=1)(inputs)


def imagined(world: FeedForwardWorld, steps: int = 3, *, keys: jax.Array = KEYS) -> list[Outcome]:
    """What a few steps under the same actions lead to."""
    state, outcomes = reset(world, keys), []
    for time in range(steps):
        at = jax.vmap(lambda key, time=time: jax.random.fold_in(key, time))(keys)
        state, outcome = step(world, state, ACTION, at)
        outcomes.append(outcome)
    return outcomes


def otherwise(world: FeedForwardWorld, **settings: Any) -> FeedForwardWorld:
    return replace(world, imagination=FeedForward(**settings).imagination)


def alone(world: FeedForwardWorld, member: int) -> FeedForwardWorld:
    """The ensemble of one of the members."""
    return replace(world, members=jax.tree.map(lambda leaf: leaf[member : member + 1], world.members))


def steps_of(episodes: Episodes) -> Window:
    """Every logged step as a window of its own."""
    episode = np.repeat(np.arange(episodes.count), episodes.length)
    start = np.concatenate([np.arange(length) for length in episodes.length])
    places = WindowStarts(jnp.asarray(episode), jnp.asarray(start))
    return Sampler.of(EpisodeView.of(episodes)).cut(places, steps=1)


# What members say


def test_the_stacked_members_are_the_members_one_by_one(world):
    together = predict(world)
    for member in range(MEMBERS):
        expected = jax.tree.leaves(predict(alone(world, member)))
        for leaf, single in zip(jax.tree.leaves(together), expected, strict=True):
            np.testing.assert_allclose(leaf[member], single[0], rtol=1e-5, atol=1e-6)
    means = np.asarray(together.values.mean)
    assert np.abs(means[0] - means[1]).max() > 0.1


def test_the_objective_is_the_likelihood_of_changes_rewards_and_terminations(world):
    windows = steps_of(LOGS)
    found = eqx.filter_jit(lambda world: jax.vmap(world.objective)(windows))(world)
    read = jax.vmap(world.read)(windows)
    prediction = eqx.filter_jit(lambda world: jax.vmap(world.predict, out_axes=1)(read[0]))(world)
    seen = np.asarray(world.observation.apply(windows.observation), np.float64)
    change = (seen[:, 1] - seen[:, 0] - world.change.mean) / world.change.scale
    reward = (np.asarray(windows.reward, np.float64) - world.reward.mean) / world.reward.scale
    values = np.concatenate([change, reward], axis=1)
    data = norm.logpdf(values, prediction.values.mean, prediction.values.scale).sum(-1).mean(0)
    probability = expit(np.asarray(prediction.termination.logit, np.float64))
    ended = np.asarray(windows.terminated)[:, 0] > 0
    assert ended.sum() == 2
    ending = np.log(np.where(ended, probability, 1 - probability)).mean(0)
    np.testing.assert_allclose(found["data"], data, rtol=1e-4)
    np.testing.assert_allclose(found["termination"], ending, rtol=1e-4)


def test_changes_are_standardised_within_episodes_only(world):
    scaled = np.asarray(world.observation.apply(jnp.asarray(LOGS.observation)))
    parts = np.split(scaled, np.cumsum(LOGS.length + 1)[:-1])
    changes = np.concatenate([np.diff(part, axis=0) for part in parts])
    np.testing.assert_allclose(world.change.mean, changes.mean(axis=0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(world.change.scale, changes.std(axis=0), rtol=1e-4)


def test_terminations_start_at_the_logged_rate_and_without_any_there_are_none(world):
    silent = eqx.tree_at(lambda w: w.members.mlp.last.weight, world, replace_fn=jnp.zeros_like)
    np.testing.assert_allclose(predict(silent).termination.probability, 2 / 11, rtol=1e-5)
    never = world_for(noise_logs((4, 4)))
    assert not never.members.terminates
    np.testing.assert_array_equal(imagined(never, 1)[0].termination, 0.0)


# How members act together


def test_the_average_keeps_the_noise_that_members_see(world):
    prediction = predict(world)
    mean, scale = (np.asarray(part, np.float64) for part in jax.tree.leaves(prediction.values))
    averaged = jax.jit(average)(prediction)
    np.testing.assert_allclose(averaged.values.mean, mean.mean(0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(averaged.values.scale, np.sqrt((scale**2).mean(0)), rtol=1e-4)
    chance = expit(np.asarray(prediction.termination.logit, np.float64)).mean(0)
    np.testing.assert_allclose(averaged.termination.probability, chance, rtol=1e-4)


def test_the_average_of_all_members_can_say_what_happens(world):
    together = otherwise(world, ensemble="average", clip_margin=None)
    (outcome,) = imagined(together, 1)
    singles = [imagined(otherwise(alone(world, m), clip_margin=None), 1)[0] for m in range(MEMBERS)]
    for name in Outcome._fields:
        expected = np.mean([getattr(single, name) for single in singles], axis=0)
        np.testing.assert_allclose(getattr(outcome, name), expected, rtol=1e-3, atol=1e-4)


def test_an_episode_stays_with_its_member_and_every_member_has_episodes(world):
    member = np.asarray(reset(world, KEYS).member)
    assert set(member) == set(range(MEMBERS))
    outcomes = imagined(otherwise(world, ensemble="episode"))
    for index in range(MEMBERS):
        expected = imagined(alone(world, index))
        for outcome, single in zip(outcomes, expected, strict=True):
            for part, other in zip(outcome, single, strict=True):
                own = np.asarray(part)[member == index], np.asarray(other)[member == index]
                np.testing.assert_allclose(*own, rtol=1e-4, atol=1e-5)


def test_a_member_may_be_chosen_at_every_step(world):
    steps = imagined(otherwise(world, ensemble="step"))
    singles = [imagined(alone(world, member), 1)[0] for member in range(MEMBERS)]
    first = np.asarray(steps[0].reward)
    distance = np.stack([np.abs(first - np.asarray(single.reward)) for single in singles])
    assert distance.min(axis=0).max() < 1e-5
    assert len(np.unique(distance.argmin(axis=0))) > 1
    stays = imagined(otherwise(world, ensemble="episode"))
    assert np.abs(np.asarray(steps[-1].reward) - np.asarray(stays[-1].reward)).max() > 1e-3


# What is drawn, and how far it may go


@pytest.mark.parametrize("ensemble", ["episode", "average"])
def test_means_do_not_depend_on_the_key_of_a_step(world, ensemble):
    state = reset(world, KEYS)
    steady = otherwise(world, ensemble=ensemble, sampling="none")
    for part, other in zip(
        *(step(steady, state, ACTION, keys)[1] for keys in (KEYS, KEYS[::-1])), strict=True
    ):
        np.testing.assert_array_equal(part, other)


def test_draws_scatter_around_the_mean_by_the_spread_that_is_predicted(world):
    one = alone(world, 0)
    drawing = otherwise(one, sampling="all", clip_margin=None)
    state = reset(drawing, KEYS)
    many = jax.random.split(jax.random.key(1), (3000, EPISODES))
    draw = eqx.filter_jit(
        lambda: jax.lax.map(lambda keys: step(drawing, state, ACTION, keys)[1].reward, many)
    )
    drawn = np.asarray(one.reward.apply(draw()[..., None]), np.float64)[..., 0]
    law = predict(one).values
    deviation = (drawn - law.mean[0, :, -1]) / law.scale[0, :, -1]
    np.testing.assert_allclose(deviation.mean(0), 0.0, atol=0.08)
    np.testing.assert_allclose(deviation.std(0), 1.0, atol=0.06)


def test_predictions_stay_in_the_logged_range_unless_asked_not_to(world):
    low, high = LOGS.observation.min(axis=0), LOGS.observation.max(axis=0)
    width = high - low

    def beyond(margin: float | None) -> float:
        outcomes = imagined(otherwise(world, sampling="all", clip_margin=margin))
        far = np.asarray([outcome.observation for outcome in outcomes])
        return float((np.maximum(low - far, far - high) / width).max())

    assert beyond(0.0) < 1e-5
    assert beyond(0.1) == pytest.approx(0.1, abs=1e-5)
    assert beyond(None) > 0.2


def test_ids_and_one_hot_vectors_are_the_same_action():
    world = world_for(noise_logs((4, 3), n_actions=3))
    state = reset(world, KEYS)
    ids = jnp.array([0, 1, 2, 2, 1, 0, 0, 1])
    _, by_id = step(world, state, ids, KEYS)
    _, by_vector = step(world, state, jax.nn.one_hot(ids, 3), KEYS)
    np.testing.assert_allclose(by_id.observation, by_vector.observation, rtol=1e-6)
    _, other = step(world, state, (ids + 1) % 3, KEYS)
    assert np.abs(np.asarray(other.observation - by_id.observation)).max() > 1e-3


def test_it_says_that_it_cannot_begin_from_nothing(world):
    with pytest.raises(InputError, match="FeedForwardWorld cannot imagine how an episode begins; give"):
        world.reset_from_prior(jax.random.key(0))
