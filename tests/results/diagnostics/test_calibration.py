"""Coverage of predicted intervals."""

from __future__ import annotations

import numpy as np
import pytest

from vlbm.results.diagnostics.calibration import DRAWS, LEVELS, calibrate, measure_coverage, rank_among
from walks import walk, walks


def test_ranks_count_draws_below_and_ties_half():
    drawn = np.array([[[1.0], [2.0], [3.0], [3.0]]])
    for logged, rank in ((0.0, 0), (2.5, 2), (3.0, 3), (9.0, 4)):
        assert rank_among(drawn, np.array([[logged]])).item() == rank


def test_every_rank_once_is_exactly_calibrated_at_every_level():
    drawn = np.broadcast_to(np.arange(DRAWS, dtype=float)[None, :, None], (DRAWS + 1, DRAWS, 1))
    logged = (np.arange(DRAWS + 1) - 0.5)[:, None]
    assert measure_coverage(drawn, logged, np.ones(DRAWS + 1, bool)) == pytest.approx(LEVELS)


def test_predictions_from_the_same_distribution_are_calibrated():
    random = np.random.default_rng(0)
    drawn, logged = random.normal(size=(4000, DRAWS, 2)), random.normal(size=(4000, 2))
    assert measure_coverage(drawn, logged, np.ones(4000, bool)) == pytest.approx(LEVELS, abs=0.02)


def test_too_narrow_predictions_cover_too_little_and_too_wide_ones_too_much():
    random = np.random.default_rng(0)
    drawn, logged = random.normal(size=(500, DRAWS, 1)), random.normal(size=(500, 1))
    everything = np.ones(500, bool)
    assert (measure_coverage(drawn * 0.3, logged, everything) < np.array(LEVELS)).all()
    assert (measure_coverage(drawn * 3.0, logged, everything) > np.array(LEVELS)).all()


def test_padding_does_not_count():
    drawn, logged = np.zeros((2, DRAWS, 1)), np.array([[0.0], [100.0]])
    assert measure_coverage(drawn, logged, np.array([True, False])).tolist() == [1.0] * len(LEVELS)
    assert measure_coverage(drawn, logged, np.zeros(2, bool)).tolist() == [0.0] * len(LEVELS)


def test_the_system_itself_is_calibrated_and_errs_by_its_own_noise():
    logs = walks(200, 12)
    found = calibrate([walk(logs), walk(logs)], logs, windows=1500)
    assert found.ahead == (1, 10)
    for ahead in range(2):
        assert found.coverage[ahead] == pytest.approx(LEVELS, abs=0.05)
        assert found.reward_coverage[ahead] == pytest.approx(LEVELS, abs=0.05)
    scale = logs.observation[:, 0].std()
    # The mean of 19 draws errs a little more than the exact mean; standing still also misses the actions.
    expected = np.sqrt(np.arange(1, 13) * (1 + 1 / DRAWS)) / scale
    assert found.error == pytest.approx(expected, rel=0.1)
    assert found.standstill[0] == pytest.approx(np.sqrt(2) / scale, rel=0.1)


def test_a_world_that_is_too_sure_covers_too_little():
    logs = walks(100, 12)
    found = calibrate([walk(logs, spread=0.3)], logs, windows=500)
    assert (found.coverage < np.array(LEVELS) - 0.04).all()


def test_steps_ahead_go_no_further_than_the_longest_held_out_episode():
    logs = walks(6, 5)
    found = calibrate([walk(logs)], logs, windows=8)
    assert found.ahead == (1,)
    assert len(found.error) == 5
