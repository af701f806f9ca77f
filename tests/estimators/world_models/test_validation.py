"""Validation: the open-loop error by hand, on episodes that no model is trained on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import vlbm.estimators.world_models.settings as training_module
import vlbm.estimators.world_models.validation as validation_module
from systems import bits, linear_logs, noise_logs, random_world
from vlbm.data.episodes import Episodes, split_indices
from vlbm.data.sampler import Sampler, Window, WindowStarts
from vlbm.data.view import EpisodeView
from vlbm.estimators.world_models.feedforward import FeedForward
from vlbm.estimators.world_models.validation import open_loop_error, open_loop_validation
from vlbm.estimators.world_models.vlbm import VLBM
from vlbm.nn.training import History
from vlbm.worlds.base import Imagination, World

error = eqx.filter_jit(open_loop_error)
FF = FeedForward(members=2, units=(6,), batch=16, steps=5, validate_every=5, warm_up=0)
TINY: dict[str, Any] = {"branches": 2, "latents": 2, "units": 4, "head_units": (4,), "g_units": (4,)}


def windows_of(episodes: Episodes, steps: int) -> Window:
    places = WindowStarts(jnp.arange(episodes.count), jnp.zeros(episodes.count, int))
    return Sampler.of(EpisodeView.of(episodes)).cut(places, steps=steps)


def errors_by_hand(world: World, windows: Window, keys: jax.Array) -> np.ndarray:
    """Squared errors of state and reward at every step of every window, standardised."""
    out = np.full(windows.valid.shape, np.nan)
    step = eqx.filter_jit(lambda world, *inputs: world.step(*inputs))
    for row in range(len(out)):
        noise = world.draw_noise(jax.random.split(keys[row])[0])
        state = world.reset(windows.observation[row, 0], noise)
        for time in range(int(windows.valid[row].sum())):
            state, outcome = step(world, state, windows.action[row, time], noise)
            seen = (outcome.observation - windows.observation[row, time + 1]) / world.observation.scale
            paid = (outcome.reward - windows.reward[row, time]) / world.reward.scale
            out[row, time] = float((seen**2).mean() + (paid**2).mean())
    return out


def test_the_open_loop_error_is_the_squared_error_of_predictions_under_logged_actions():
    episodes = noise_logs((6, 3), terminated=(True, False))
    world = replace(random_world(episodes), imagination=Imagination("none", reencode_every=2))
    windows = windows_of(episodes, 4)
    expected = errors_by_hand(world, windows, jax.random.split(jax.random.key(0), 2))
    # The second episode has three steps: at the fourth, only the first one counts.
    assert np.isnan(expected).sum() == 1
    np.testing.assert_allclose(error(world, windows), np.nanmean(expected, axis=0).mean(), rtol=1e-3)


def test_what_padding_holds_does_not_count():
    episodes = noise_logs((6, 3))
    world = replace(random_world(episodes), imagination=Imagination("none"))
    windows = windows_of(episodes, 4)
    spoiled = replace(windows, reward=jnp.where(windows.valid, windows.reward, 1e6))
    np.testing.assert_allclose(error(world, spoiled), error(world, windows), rtol=1e-6)


def test_every_member_of_an_ensemble_is_validated_where_each_imagines_episodes_of_its_own():
    episodes = linear_logs()
    world = FF.make_world(episodes, key=jax.random.key(0))
    windows = windows_of(episodes, 4)
    before = float(error(world, windows))
    for member in range(2):
        bias = world.members.mlp.last.bias.at[member].add(2.0)
        spoiled = eqx.tree_at(lambda world: world.members.mlp.last.bias, world, bias)
        assert float(error(spoiled, windows)) > before + 0.1


def test_means_are_validated_even_where_draws_are_imagined():
    episodes = noise_logs((6,) * 5)
    world = random_world(episodes)
    held_out = EpisodeView.of(episodes)
    drawing, steady = Imagination("all", reencode_every=3), Imagination("none", reencode_every=3)
    scores = [open_loop_validation(held_out, imagination)(world) for imagination in (drawing, steady)]
    assert scores[0] == scores[1]
    assert scores[0] == open_loop_validation(held_out, drawing)(world)


# Which episodes, and from where


def test_what_is_held_out_decides_the_score_and_nothing_that_is_learnt():
    episodes = linear_logs((8,) * 10)
    training, held_out = split_indices(episodes.count, FF.held_out, seed=3)
    assert not set(training) & set(held_out)
    assert sorted([*training, *held_out]) == list(range(10))
    other = replace(episodes, reward=episodes.reward.copy(), observation=episodes.observation.copy())
    for index in held_out:
        first, row = episodes.first_step[index], episodes.first_observation[index]
        other.reward[first : first + 8] += 50.0
        other.observation[row : row + 9] *= -2.0
    one, changed = (FF.fit(logs, seed=3) for logs in (episodes, other))
    assert bits(one.worlds) == bits(changed.worlds)
    assert changed.histories[0].best_score > 10 * one.histories[0].best_score


@pytest.fixture
def validated(monkeypatch) -> list[Window]:
    """The windows that models are validated on; training itself is left out."""
    seen: list[Window] = []
    original = validation_module.held_out_windows

    def spy(*args: Any, **options: Any) -> Window:
        seen.append(original(*args, **options))
        return seen[-1]

    monkeypatch.setattr(validation_module, "held_out_windows", spy)
    monkeypatch.setattr(training_module, "train", lambda loss, world, *args, **options: (world, History()))
    return seen


@pytest.mark.parametrize("window", [4, None])
def test_windows_are_of_held_out_episodes_and_for_models_of_whole_ones_begin_with_them(validated, window):
    episodes = noise_logs((15,) * 20)
    VLBM(**TINY, window=window, models=2, keep=None, batch=4, steps=1, validate_every=1).fit(episodes, seed=5)
    _, held_out = split_indices(episodes.count, 0.1, seed=5)
    allowed = {row.tobytes() for row in episodes.select(held_out).observation}
    starts = {row.tobytes() for row in episodes.select(held_out).initial_observations()}
    assert len(validated) == 2
    for windows in validated:
        seen = np.asarray(windows.observation)
        assert {row.tobytes() for row in seen.reshape(-1, seen.shape[-1])} <= allowed
        at_start = np.mean([row.tobytes() in starts for row in seen[:, 0]])
        assert at_start == 1.0 if window is None else at_start < 0.5
    # All models are validated on the same windows, or their scores would not compare.
    assert bits(validated[0]) == bits(validated[1])
