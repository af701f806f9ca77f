"""Features shared by all policies: what they forecast is summed by hand here."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from vlbm.data.episodes import Episodes
from vlbm.estimators.critics.representation import (
    COLUMNS,
    DISCOUNTS,
    Book,
    Lessons,
    learn_trunk,
    what_came_after,
)
from vlbm.nn.optimiser import Schedule
from vlbm.progress import silent


def logs(*, columns: int = 1) -> Episodes:
    """Two episodes of two steps; the first ends, the second is cut off."""
    return Episodes(
        observation=np.arange(6.0)[:, None].astype(np.float32) * np.ones(columns, np.float32),
        action=np.zeros((4, 1), np.float32),
        reward=np.array([1.0, 0.0, 2.0, 1.0], np.float32),
        length=np.array([2, 2]),
        terminated=np.array([True, False]),
    )


def standard(values: list[float]) -> np.ndarray:
    return (np.array(values) - np.mean(values)) / np.std(values)


def test_what_came_after_is_a_discounted_sum_that_stops_where_the_episode_ended():
    episodes = logs()
    goes_on = np.array([1.0, 0.0, 1.0, 1.0], np.float32)
    found = what_came_after(episodes, episodes.observation, goes_on, discount=0.5, seed=0)
    assert found.shape == (4, 2 * 3)  # of the usual discounts only 0 is below this one
    reward = standard([1.0, 0.0, 2.0, 1.0])
    np.testing.assert_allclose(found[:, 0], reward, atol=1e-5)
    np.testing.assert_allclose(found[:, 1], standard([1.0, 2.0, 4.0, 5.0]), atol=1e-5)
    # The last reward of the second episode goes on for ever: 1 + 1/2 + 1/4 + ... = 2.
    endless = [reward[0] + reward[1] / 2, reward[1], reward[2] + reward[3], 2 * reward[3]]
    np.testing.assert_allclose(found[:, 3], standard(endless), atol=1e-5)
    np.testing.assert_allclose(found[:, 4], standard([1 + 2 / 2, 2, 4 + 5, 10]), atol=1e-5)


def test_wide_observations_are_mixed_into_fewer_columns():
    episodes = logs(columns=3 * COLUMNS)
    found = what_came_after(episodes, episodes.observation, np.ones(4, np.float32), discount=0.99, seed=0)
    assert found.shape == (4, (len(DISCOUNTS) + 1) * (COLUMNS + 2))
    assert np.isfinite(found).all()


def test_features_forecast_what_the_observation_alone_cannot_say_linearly():
    random = np.random.default_rng(0)
    observation = random.normal(size=(2000, 2)).astype(np.float32)
    book = Book(
        observation=jnp.asarray(observation),
        action=jnp.zeros((2000, 1)),
        before=jnp.arange(2000),
        after=jnp.asarray(np.abs(observation[:, :1]) - np.abs(observation[:, 1:])),
        weight=jnp.ones((2000, 1)),
        pool=jnp.arange(2000),
    )
    schedule = Schedule(steps=300, learning_rate=1e-2)
    trunk = learn_trunk(book, Lessons((16,), schedule, 64), seed=0, progress=silent)
    seen = np.asarray(trunk(book.observation))
    assert seen.shape == (1, 2000, 2 + 16)
    np.testing.assert_array_equal(seen[0, :, :2], observation)
    target = np.asarray(book.after)[:, 0]

    def left(features: np.ndarray) -> float:
        known = np.concatenate([features, np.ones((2000, 1))], axis=1)
        return float(np.var(target - known @ np.linalg.lstsq(known, target, rcond=None)[0]) / target.var())

    assert left(observation) > 0.9
    assert left(seen[0]) < 0.15


def test_ctrl_c_while_features_are_learnt_ends_it_all(monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    book = Book(*(jnp.zeros((4, 1)),) * 2, jnp.arange(4), *(jnp.ones((4, 1)),) * 2, jnp.arange(4))
    monkeypatch.setattr(Book, "error", interrupted)
    with pytest.raises(KeyboardInterrupt):
        learn_trunk(book, Lessons((4,), Schedule(steps=2), 2), seed=0, progress=silent)
