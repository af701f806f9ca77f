"""Windows: gathered on the device, equal to slices by hand."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from systems import noise_logs
from vlbm.drawing import round_size
from vlbm.episodes import Episodes, concatenate
from vlbm.windows import Window, WindowSource, held_out_windows

LENGTHS = (7, 1, 3, 12)
ENDS = (True, True, False, True)


@pytest.fixture(scope="module")
def episodes() -> Episodes:
    return noise_logs(LENGTHS, terminated=ENDS)


def on_host(window: Window) -> Window:
    return jax.tree.map(np.asarray, window)


def cut(episodes: Episodes, episode: list[int], start: list[int], *, steps: int = 4) -> Window:
    cutting = jax.jit(WindowSource.cut, static_argnames="steps")
    return on_host(cutting(WindowSource.of(episodes), jnp.array(episode), jnp.array(start), steps=steps))


def test_a_window_holds_the_slices_of_its_episode(episodes):
    pairs = [(0, 0), (0, 3), (1, 0), (2, 0), (2, 1), (3, 0), (3, 4), (3, 8)]
    window = cut(episodes, [pair[0] for pair in pairs], [pair[1] for pair in pairs])
    for column, (episode, start) in enumerate(pairs):
        real = min(4, LENGTHS[episode] - start)
        step = episodes.first_step[episode] + start
        row = episodes.first_observation[episode] + start
        np.testing.assert_array_equal(window.valid[:, column], np.arange(4) < real)
        np.testing.assert_array_equal(
            window.observation[: real + 1, column], episodes.observation[row : row + real + 1]
        )
        np.testing.assert_array_equal(window.action[:real, column], episodes.action[step : step + real])
        np.testing.assert_array_equal(window.reward[:real, column], episodes.reward[step : step + real])


def test_a_step_ends_only_where_the_system_ended_the_episode(episodes):
    window = cut(episodes, [0, 0, 1, 2, 3, 3], [0, 3, 0, 0, 7, 8])
    expected = np.zeros((4, 6))
    expected[3, 1] = expected[0, 2] = expected[3, 5] = 1  # step 6 of episode 0, 0 of 1 and 11 of 3
    np.testing.assert_array_equal(window.ended * window.valid, expected)


def test_an_observation_is_real_at_the_start_and_after_every_valid_step(episodes):
    window = cut(episodes, [1, 2], [0, 0])
    np.testing.assert_array_equal(window.observed, np.array([[1, 1, 0, 0, 0], [1, 1, 1, 1, 0]], bool).T)


def test_padding_repeats_numbers_of_the_same_episode_and_is_finite(episodes):
    window = cut(episodes, [1, 2], [0, 0])
    np.testing.assert_array_equal(window.observation[1:, 0], np.tile(window.observation[1, 0], (4, 1)))
    np.testing.assert_array_equal(window.reward[:, 0], np.full(4, episodes.reward[7]))


def draw(episodes: Episodes, *, at_start: float) -> tuple[Window, np.ndarray, np.ndarray]:
    """Many windows of 4 steps; the episode and the step each begins at, told by its first observation."""
    drawing = jax.jit(WindowSource.draw, static_argnames=("steps", "batch", "at_start"))
    source, key = WindowSource.of(episodes), jax.random.key(0)
    window = on_host(drawing(source, steps=4, batch=8000, at_start=at_start, key=key))
    rows = {row.tobytes(): index for index, row in enumerate(episodes.observation)}
    row = np.array([rows[first.tobytes()] for first in window.observation[0]])
    episode = np.searchsorted(episodes.first_observation, row, side="right") - 1
    return window, episode, row - episodes.first_observation[episode]


@pytest.fixture(scope="module")
def anywhere(episodes) -> tuple[Window, np.ndarray, np.ndarray]:
    return draw(episodes, at_start=0.0)


def test_windows_reach_every_step_and_the_last_one_too(anywhere):
    window, episode, start = anywhere
    seen = {
        (int(which), int(begin) + offset)
        for which, begin in zip(episode, start, strict=True)
        for offset in range(min(4, LENGTHS[which] - begin))
    }
    assert seen == {(index, step) for index, length in enumerate(LENGTHS) for step in range(length)}
    assert set(episode[window.ended.any(0)]) == {0, 1, 3}


def test_windows_run_past_the_end_only_of_episodes_that_are_shorter(anywhere):
    window, episode, start = anywhere
    length = np.array(LENGTHS)[episode]
    np.testing.assert_array_equal(window.valid.sum(0), np.minimum(4, length))
    assert (start[length <= 4] == 0).all()
    assert set(start[episode == 3]) == set(range(9))


def test_the_steps_of_short_episodes_count_as_much_as_those_of_long_ones(anywhere):
    window, episode, _ = anywhere
    share = np.bincount(episode, weights=window.valid.sum(0)) / window.valid.sum()
    np.testing.assert_allclose(share, np.array(LENGTHS) / sum(LENGTHS), atol=0.02)


@pytest.mark.parametrize("count", [1, 7, 15, 16, 17, 100, 1_000, 123_456, 2_000_000])
def test_sizes_are_rounded_up_by_an_eighth_at_most(count):
    assert count <= round_size(count) <= count * 1.125


def test_data_of_nearly_one_size_have_arrays_of_one_shape(episodes):
    many = concatenate([episodes] * 30)
    fewer = many.select(range(1, many.count))
    shapes = [jax.tree.map(np.shape, WindowSource.of(part)) for part in (many, fewer)]
    assert shapes[0].observation == shapes[1].observation
    assert shapes[0].layout.length == shapes[1].layout.length


def test_a_share_of_the_windows_begins_with_an_episode(episodes):
    _, episode, start = draw(episodes, at_start=0.3)
    # An episode of 12 steps starts a window at 0 by chance too: 1 of its 12 steps leads there.
    np.testing.assert_allclose((start[episode == 3] == 0).mean(), 0.3 + 0.7 / 12, atol=0.03)
    _, _, start = draw(episodes, at_start=1.0)
    assert (start == 0).all()


def test_whole_episodes_are_drawn_equally_often_from_their_first_step(episodes):
    drawing = jax.jit(WindowSource.draw_episodes, static_argnames=("steps", "batch"))
    window = on_host(drawing(WindowSource.of(episodes), steps=12, batch=8000, key=jax.random.key(0)))
    lengths, counts = np.unique(window.valid.sum(0), return_counts=True)
    np.testing.assert_array_equal(lengths, sorted(LENGTHS))
    np.testing.assert_allclose(counts / 8000, 0.25, atol=0.02)
    first = {row.tobytes() for row in episodes.initial_observations()}
    assert {row.tobytes() for row in window.observation[0]} == first


def test_discrete_actions_come_as_one_hot_vectors():
    episodes = noise_logs((5, 2), choices=3)
    window = cut(episodes, [0, 1], [1, 0], steps=2)
    np.testing.assert_array_equal(window.action[:, 0], np.eye(3)[episodes.action[1:3]])
    np.testing.assert_array_equal(window.action[:, 1], np.eye(3)[episodes.action[5:7]])


def test_held_out_windows_are_the_same_every_time(episodes):
    first, again, other = (held_out_windows(episodes, steps=3, count=16, seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.observation, again.observation)
    assert not np.array_equal(first.observation, other.observation)
