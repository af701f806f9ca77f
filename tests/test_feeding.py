"""WindowFeed: the same windows as on the device, from the host."""

from __future__ import annotations

import equinox as eqx
import jax
import numpy as np
import pytest

from systems import bits, noise_logs
from vlbm.episodes import Episodes
from vlbm.feeding import WindowFeed
from vlbm.selection import Selection
from vlbm.windows import Window, WindowSource

KEY = jax.random.key(3)
DRAWN = {"steps": 4, "batch": 50, "at_start": 0.3}


@pytest.fixture(scope="module", params=[None, 3], ids=["vectors", "ids"])
def episodes(request) -> Episodes:
    lengths = (7, 1, 3, 12, 9)
    return noise_logs(lengths, terminated=(True, True, False, True, False), choices=request.param)


@pytest.fixture(scope="module")
def log(episodes) -> Selection:
    return Selection(episodes, np.array([0, 1, 3]))


def drawn_on_device(log: Selection, step: int) -> Window:
    source = WindowSource.of(log.gathered())
    drawing = eqx.filter_jit(lambda source, key: source.draw(**DRAWN, key=key))
    return drawing(source, jax.random.fold_in(KEY, step))


def feed(log: Selection) -> WindowFeed:
    return WindowFeed(log, lambda layout, key: layout.draw(**DRAWN, key=key), steps=DRAWN["steps"])


def at(windows: Window, index: int) -> Window:
    return jax.tree.map(lambda leaf: leaf[index], windows)


def test_a_feed_gives_the_windows_that_the_device_draws_to_the_bit(log):
    windows = feed(log).stretch(KEY, begin=20, count=5)
    for index in range(5):
        assert bits(at(windows, index)) == bits(drawn_on_device(log, 20 + index))


def test_whole_episodes_are_the_same_too(log):
    fed = WindowFeed(log, lambda layout, key: layout.draw_episodes(steps=12, batch=9, key=key), steps=12)
    device = WindowSource.of(log.gathered()).draw_episodes(steps=12, batch=9, key=jax.random.fold_in(KEY, 1))
    assert bits(at(fed.stretch(KEY, begin=0, count=2), 1)) == bits(device)


def test_what_is_gathered_ahead_is_what_would_be_gathered_then(log):
    ahead = feed(log)
    ahead.stretch(KEY, begin=0, count=5)
    assert bits(ahead.stretch(KEY, begin=5, count=5)) == bits(feed(log).stretch(KEY, begin=5, count=5))


def test_steps_may_be_asked_for_in_any_order(log):
    jumping = feed(log)
    for begin in (0, 3, 20, 0):
        windows = jumping.stretch(KEY, begin=begin, count=5)
        assert bits(at(windows, 0)) == bits(drawn_on_device(log, begin))
