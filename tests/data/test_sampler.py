"""Windows: cut on the device and gathered from mapped data, equal to slices by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from systems import bits, noise_logs
from vlbm.data.episodes import Episodes
from vlbm.data.readers.packed import save_packed
from vlbm.data.sampler import MappedSampler, Plan, Sampler, Window, WindowStarts, cut_mapped, held_out_windows
from vlbm.data.view import EpisodeView

LENGTHS = (7, 1, 3, 12)
TERMINATED = (True, True, False, True)


@pytest.fixture(scope="module")
def episodes() -> Episodes:
    return noise_logs(LENGTHS, terminated=TERMINATED)


def on_host(window: Window) -> Window:
    return jax.tree.map(np.asarray, window)


def cut_on_device(log: EpisodeView, places: WindowStarts, *, steps: int) -> Window:
    return eqx.filter_jit(Sampler.cut)(Sampler.of(log), places, steps=steps)


# What is true of windows is true wherever they are cut.
@pytest.fixture(params=[cut_on_device, cut_mapped], ids=["device", "host"])
def cut(request) -> Callable[..., Window]:
    def cut(episodes: Episodes, episode: list[int], start: list[int], *, steps: int = 4) -> Window:
        places = WindowStarts(jnp.array(episode), jnp.array(start))
        return on_host(request.param(EpisodeView.of(episodes), places, steps=steps))

    return cut


def test_a_window_holds_the_slices_of_its_episode(episodes, cut):
    pairs = [(0, 0), (0, 3), (1, 0), (2, 0), (2, 1), (3, 0), (3, 4), (3, 8)]
    window = cut(episodes, [pair[0] for pair in pairs], [pair[1] for pair in pairs])
    for number, (episode, start) in enumerate(pairs):
        real = min(4, LENGTHS[episode] - start)
        step = episodes.first_step[episode] + start
        row = episodes.first_observation[episode] + start
        np.testing.assert_array_equal(window.valid[number], np.arange(4) < real)
        np.testing.assert_array_equal(
            window.observation[number, : real + 1], episodes.observation[row : row + real + 1]
        )
        np.testing.assert_array_equal(window.action[number, :real], episodes.action[step : step + real])
        np.testing.assert_array_equal(window.reward[number, :real], episodes.reward[step : step + real])


def test_a_step_terminates_only_where_the_system_ended_the_episode(episodes, cut):
    window = cut(episodes, [0, 0, 1, 2, 3, 3], [0, 3, 0, 0, 7, 8])
    expected = np.zeros((6, 4))
    expected[1, 3] = expected[2, 0] = expected[5, 3] = 1  # step 6 of episode 0, 0 of 1 and 11 of 3
    np.testing.assert_array_equal(window.terminated, expected)


def test_padding_repeats_numbers_of_the_same_episode_and_is_finite(episodes, cut):
    window = cut(episodes, [1, 2], [0, 0])
    np.testing.assert_array_equal(window.observation[0, 1:], np.tile(window.observation[0, 1], (4, 1)))
    np.testing.assert_array_equal(window.reward[0], np.full(4, episodes.reward[7]))
    np.testing.assert_array_equal(window.action[0], np.tile(episodes.action[7], (4, 1)))


def test_discrete_actions_come_as_one_hot_vectors(cut):
    episodes = noise_logs((5, 2), n_actions=3)
    window = cut(episodes, [0, 1], [1, 0], steps=2)
    np.testing.assert_array_equal(window.action[0], np.eye(3)[episodes.action[1:3]])
    np.testing.assert_array_equal(window.action[1], np.eye(3)[episodes.action[5:7]])


# What is drawn


def draw(log: EpisodeView, plan: Plan) -> tuple[Window, np.ndarray, np.ndarray]:
    """Windows; the episode and the step each begins at, told by its first observation."""
    episodes = log.collection
    window = on_host(eqx.filter_jit(Sampler.draw)(Sampler.of(log), plan, jax.random.key(0)))
    rows = {row.tobytes(): index for index, row in enumerate(episodes.observation)}
    row = np.array([rows[first.tobytes()] for first in window.observation[:, 0]])
    episode = np.searchsorted(episodes.first_observation, row, side="right") - 1
    return window, episode, row - episodes.first_observation[episode]


@pytest.fixture(scope="module")
def anywhere(episodes) -> tuple[Window, np.ndarray, np.ndarray]:
    return draw(EpisodeView.of(episodes), Plan(batch=8000, steps=4))


def test_windows_reach_every_step_and_the_last_one_too(anywhere):
    window, episode, start = anywhere
    seen = {
        (int(which), int(begin) + offset)
        for which, begin in zip(episode, start, strict=True)
        for offset in range(min(4, LENGTHS[which] - begin))
    }
    assert seen == {(index, step) for index, length in enumerate(LENGTHS) for step in range(length)}
    assert set(episode[window.terminated.any(1)]) == {0, 1, 3}


def test_windows_begin_at_every_logged_step_equally_often_and_run_past_the_end(anywhere):
    window, episode, start = anywhere
    length = np.array(LENGTHS)[episode]
    np.testing.assert_array_equal(window.valid.sum(1), np.minimum(4, length - start))
    begun = np.bincount((np.cumsum(LENGTHS) - LENGTHS)[episode] + start, minlength=sum(LENGTHS))
    np.testing.assert_allclose(begun / 8000, 1 / sum(LENGTHS), atol=0.01)


def test_terminations_stand_at_every_place_of_a_window_equally_often(anywhere):
    window, episode, _ = anywhere
    place = window.terminated[np.isin(episode, (0, 3))].sum(0)  # episodes longer than a window
    np.testing.assert_allclose(place / place.sum(), 0.25, atol=0.03)


def test_a_share_of_the_windows_begins_with_an_episode(episodes):
    log = EpisodeView.of(episodes)
    _, episode, start = draw(log, Plan(batch=8000, steps=4, at_start=0.3))
    # Of the other windows one in as many as there are steps leads to each start.
    np.testing.assert_allclose((start == 0).mean(), 0.3 + 0.7 * 4 / sum(LENGTHS), atol=0.02)
    _, episode, start = draw(log, Plan(batch=8000, steps=4, at_start=1.0))
    assert (start == 0).all()
    np.testing.assert_allclose(np.bincount(episode) / 8000, 0.25, atol=0.02)


def test_whole_episodes_are_drawn_equally_often_from_their_first_step(episodes):
    window, episode, start = draw(EpisodeView.of(episodes), Plan(batch=8000, steps=12, whole=True))
    np.testing.assert_array_equal(window.valid.sum(1), np.array(LENGTHS)[episode])
    np.testing.assert_allclose(np.bincount(episode) / 8000, 0.25, atol=0.02)
    assert (start == 0).all()


@pytest.mark.parametrize("whole", [False, True])
def test_only_chosen_episodes_are_drawn(episodes, whole):
    log = EpisodeView(episodes, np.array([3, 1]))
    _, episode, _ = draw(log, Plan(batch=500, steps=12, whole=whole))
    assert set(episode) == {1, 3}


def test_samplers_of_other_parts_of_one_collection_have_the_same_shapes(episodes):
    parts = [EpisodeView(episodes, np.array(chosen)) for chosen in ((0, 1, 2), (3, 1, 0))]
    shapes = [jax.tree.map(np.shape, eqx.filter(Sampler.of(part), eqx.is_array)) for part in parts]
    assert jax.tree.leaves(shapes[0]) == jax.tree.leaves(shapes[1])


# Mapped data

KEY = jax.random.key(3)
PLAN = Plan(batch=50, steps=4, at_start=0.3)


def keys_of_steps(begin: int, count: int) -> jax.Array:
    return jax.vmap(lambda step: jax.random.fold_in(KEY, step))(begin + jnp.arange(count))


@pytest.fixture(scope="module", params=[None, 3], ids=["vectors", "ids"])
def log(request) -> EpisodeView:
    logged = noise_logs(
        (7, 1, 3, 12, 9), terminated=(True, True, False, True, False), n_actions=request.param
    )
    return EpisodeView(logged, np.array([0, 1, 3]))


def drawn_on_device(log: EpisodeView, step: int, plan: Plan = PLAN) -> Window:
    return eqx.filter_jit(Sampler.draw)(Sampler.of(log), plan, jax.random.fold_in(KEY, step))


def at(windows: Window, index: int) -> Window:
    return jax.tree.map(lambda leaf: leaf[index], windows)


@pytest.mark.parametrize("plan", [PLAN, Plan(batch=9, steps=12, whole=True)], ids=["windows", "whole"])
def test_a_mapped_sampler_gives_the_windows_that_the_device_draws_to_the_bit(log, plan):
    windows = MappedSampler(log, plan).gather(keys_of_steps, begin=20, count=5)
    for index in range(5):
        assert bits(at(windows, index)) == bits(drawn_on_device(log, 20 + index, plan))


def test_what_is_gathered_ahead_is_what_would_be_gathered_then(log):
    ahead, fresh = MappedSampler(log, PLAN), MappedSampler(log, PLAN)
    ahead.gather(keys_of_steps, begin=0, count=5)
    following = ahead.gather(keys_of_steps, begin=5, count=5)
    assert bits(following) == bits(fresh.gather(keys_of_steps, begin=5, count=5))


def test_steps_may_be_asked_for_in_any_order_and_number(log):
    jumping = MappedSampler(log, PLAN)
    for begin, count in ((0, 5), (3, 5), (20, 2), (22, 4), (0, 5)):
        windows = jumping.gather(keys_of_steps, begin=begin, count=count)
        assert len(windows.reward) == count
        assert bits(at(windows, count - 1)) == bits(drawn_on_device(log, begin + count - 1))


def test_a_file_that_is_mapped_gives_the_windows_of_memory(log, tmp_path: Path):
    mapped = EpisodeView(save_packed(log.collection, tmp_path / "packed"), log.chosen)
    assert mapped.mapped
    windows = MappedSampler(mapped, PLAN).gather(keys_of_steps, begin=0, count=1)
    assert bits(at(windows, 0)) == bits(drawn_on_device(log, 0))
    assert bits(held_out_windows(mapped, PLAN, seed=0)) == bits(held_out_windows(log, PLAN, seed=0))


def test_held_out_windows_are_the_same_every_time(episodes):
    log, plan = EpisodeView.of(episodes), Plan(batch=16, steps=3)
    first, again, other = (held_out_windows(log, plan, seed=seed) for seed in (0, 0, 1))
    assert bits(first) == bits(again)
    assert bits(first) != bits(other)


def test_no_window_shows_what_came_of_a_step_whose_outcome_is_unknown(episodes, tmp_path):
    final_observed = np.arange(episodes.count) % 2 == 0
    unfinished = replace(
        episodes, terminated=episodes.terminated & final_observed, final_observed=final_observed
    )
    starts = WindowStarts(*map(jnp.asarray, np.array([(e, 0) for e in range(episodes.count)]).T))
    window = on_host(Sampler.of(EpisodeView.of(unfinished)).cut(starts, steps=20))
    assert window.valid.sum(axis=1).tolist() == unfinished.known_length.tolist()
    assert not window.terminated[~final_observed].any()
    mapped = EpisodeView.of(save_packed(unfinished, tmp_path / "packed"))
    gathered = on_host(cut_mapped(mapped, starts, steps=20))
    some = window.valid.any(axis=1)
    for mine, theirs in zip(jax.tree.leaves(window), jax.tree.leaves(gathered), strict=True):
        np.testing.assert_array_equal(mine[some], theirs[some])
