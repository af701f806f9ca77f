"""Kept data: found again when whole, made again when damaged, unfinished or of another recipe."""

from __future__ import annotations

import numpy as np
import pytest

from vlbm.data.episodes import Episodes
from vlbm.suites import cache

RECIPE = {"name": "toy", "steps": 4, "seed": 0}


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setenv("VLBM_CACHE", str(tmp_path))
    return cache.data_path("toy", steps=4, seed=0)


class Maker:
    """Counts how often the data had to be made."""

    def __init__(self):
        self.times = 0

    def __call__(self) -> Episodes:
        self.times += 1
        return Episodes(
            observation=np.arange(12, dtype=np.float32).reshape(6, 2),
            action=np.ones((4, 1), np.float32),
            reward=np.arange(4, dtype=np.float32),
            length=np.array([2, 2]),
            terminated=np.array([True, False]),
            log_prob=np.full(4, -0.5, np.float32),
        )


def test_what_was_made_once_is_not_made_again(path):
    make = Maker()
    first, second = (cache.load_or_make(path, RECIPE, make) for _ in range(2))
    assert make.times == 1
    assert first.fingerprint() == second.fingerprint()
    np.testing.assert_array_equal(second.log_prob, np.full(4, -0.5, np.float32))


def test_one_damaged_byte_is_noticed_and_the_data_are_made_anew(path):
    make = Maker()
    cache.load_or_make(path, RECIPE, make)
    whole = path.read_bytes()
    path.write_bytes(whole[:-40] + bytes([whole[-40] ^ 1]) + whole[-39:])
    assert not cache.is_cached(path, RECIPE)
    cache.load_or_make(path, RECIPE, make)
    assert make.times == 2
    assert path.read_bytes() == whole


def test_data_without_a_label_count_as_unfinished(path):
    make = Maker()
    cache.load_or_make(path, RECIPE, make)
    path.with_suffix(".json").unlink()
    assert not cache.is_cached(path, RECIPE)
    cache.load_or_make(path, RECIPE, make)
    assert make.times == 2


def test_another_recipe_is_another_data_set(path):
    make = Maker()
    cache.load_or_make(path, RECIPE, make)
    cache.load_or_make(path, {**RECIPE, "mujoco": "other"}, make)
    assert make.times == 2


def test_an_interruption_leaves_nothing_that_is_taken_for_whole(path, monkeypatch):
    def interrupted() -> Episodes:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.load_or_make(path, RECIPE, interrupted)
    assert not list(path.parent.glob("*")) if path.parent.exists() else True

    # Between the data and their label, too.
    def no_label(path, text):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(cache, "write_text", no_label)
        with pytest.raises(KeyboardInterrupt):
            cache.load_or_make(path, RECIPE, Maker())
    assert not cache.is_cached(path, RECIPE)
    make = Maker()
    cache.load_or_make(path, RECIPE, make)
    assert make.times == 1
