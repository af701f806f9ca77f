"""Observations over time, and the share of running episodes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from systems import noise_logs
from vlbm.experiments.evidence.logged import summarise_log
from vlbm.experiments.evidence.trajectories import observations_at, quantile_band, share_running, time_points


def test_short_horizons_are_looked_at_at_every_step_and_long_ones_at_sixty():
    assert time_points(4).tolist() == [0, 1, 2, 3, 4]
    assert len(time_points(1000)) == 61
    assert time_points(1000)[[0, -1]].tolist() == [0, 1000]


def test_observations_are_those_of_the_episode_and_none_after_its_end():
    logs = noise_logs([2, 4])
    found = observations_at(logs, np.array([0, 2, 3]), np.array([1]))
    assert found[0, :2, 0] == pytest.approx(logs.observation[[0, 2], 1])
    assert np.isnan(found[0, 2, 0])
    assert found[1, :, 0] == pytest.approx(logs.observation[[3, 5, 6], 1])


def test_a_band_is_taken_over_the_episodes_that_still_run():
    values = np.array([[[0.0], [np.nan], [np.nan]], [[10.0], [4.0], [np.nan]]], np.float32)
    found = quantile_band(values)
    assert found[0, 0] == pytest.approx([0.5, 5.0, 9.5])
    assert found[1, 0] == pytest.approx([4.0, 4.0, 4.0])
    assert np.isnan(found[2]).all()


def test_an_episode_runs_until_its_last_observation():
    assert share_running(np.array([2, 4]), np.array([0, 2, 3, 4, 5])).tolist() == [1.0, 1.0, 0.5, 0.5, 0.0]


def test_returns_stop_at_the_horizon():
    logs = noise_logs([3, 1])
    expected = [logs.reward[0] + 0.5 * logs.reward[1], logs.reward[3]]
    assert logs.returns(0.5, horizon=2) == pytest.approx(expected)
    assert logs.returns(0.5, horizon=9) == pytest.approx(logs.returns(0.5))


def test_a_summary_counts_what_was_ended_and_what_was_cut_off():
    logs = noise_logs([5, 3, 2], terminated=[False, True, False])
    found = summarise_log(logs, discount=0.9)
    assert (found.episodes, found.steps, found.truncated) == (3, 10, 1)
    assert found.terminated == pytest.approx(1 / 3)
    assert found.mean == pytest.approx(logs.returns(0.9).mean())
    assert found.standard_error == pytest.approx(logs.returns(0.9).std(ddof=1) / np.sqrt(3))
    assert found.fingerprint == logs.fingerprint()


def test_a_summary_knows_the_columns_of_observations_by_name():
    logs = noise_logs([5, 3], observations=2)
    assert summarise_log(logs, discount=0.9).name_observation(1) == "Observation 1"
    named = summarise_log(replace(logs, observation_names=("tilt", "speed")), discount=0.9)
    assert named.name_observation(1) == "speed"
    assert named.name_observation(2) == "Observation 2"  # a changed file may say anything


def test_dimensions_that_never_change_are_not_drawn_and_many_are_not_all_drawn():
    logs = noise_logs([8] * 3, observations=40)
    logs.observation[:, 0] = 2.0
    assert summarise_log(logs, discount=0.9).dimensions.tolist() == list(range(1, 25))
    logs.observation[:] = 2.0
    assert summarise_log(logs, discount=0.9).dimensions.tolist() == list(range(24))
