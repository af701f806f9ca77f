"""Which steps lie outside the log."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from systems import noise_logs
from vlbm.results.diagnostics.support import QUANTILE, Support, features


def test_a_logged_step_has_no_distance_from_itself_and_others_have_the_euclidean_one():
    support = Support(np.array([[0.0, 0.0], [3.0, 4.0]]), np.array([1.0, 1.0]), np.array([2.0, 1.0]), 1.0)
    steps = np.array([[1.0, 1.0], [7.0, 5.0], [1.0, 3.0], [3.0, 1.0]])
    assert support.distance(steps) == pytest.approx([0.0, 0.0, 2.0, 1.0])
    assert support.outside(steps).tolist() == [False, False, True, False]


def test_steps_of_the_same_system_are_outside_as_seldom_as_the_quantile_says():
    support = Support.of(noise_logs([100] * 40))
    others = features(noise_logs([100] * 40, seed=1))
    assert support.outside(others).mean() == pytest.approx(1 - QUANTILE, abs=0.006)


def test_steps_far_away_are_all_outside():
    logs = noise_logs([50] * 8)
    far = replace(logs, observation=logs.observation + 100)
    assert Support.of(logs).outside(features(far)).all()


def test_an_action_that_was_never_taken_is_outside():
    logs = noise_logs([200] * 10, n_actions=3)
    tame = replace(logs, action=np.zeros_like(logs.action))
    wild = replace(logs, action=np.full_like(logs.action, 2))
    support = Support.of(tame)
    assert support.outside(features(tame)).mean() < 0.05
    assert support.outside(features(wild)).mean() > 0.95


def test_a_column_that_never_changes_does_not_blow_up():
    logs = noise_logs([30] * 4)
    logs.observation[:, 1] = 5.0
    support = Support.of(logs)
    assert np.isfinite(support.reach)
    assert support.scale[1] == 1.0


def test_a_single_episode_is_enough():
    support = Support.of(noise_logs([40]))
    assert support.reach > 0
    assert len(support.references) == 20
