"""What is kept of imagined episodes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from systems import noise_logs
from vlbm.data.episodes import concatenate
from vlbm.experiments.evidence.latents import LOGGED, map_latents, project_pca
from vlbm.experiments.evidence.recorder import SAMPLES, RolloutRecorder
from vlbm.experiments.evidence.trajectories import observations_at, quantile_band
from vlbm.results.diagnostics.support import Support

TIMES, DIMENSIONS = np.arange(11), np.arange(2)


def test_all_worlds_count_together():
    first, second = noise_logs([10, 4]), noise_logs([10, 10], terminated=[True, False], seed=1)
    recorder = RolloutRecorder(TIMES, DIMENSIONS, 0.9)
    recorder(0, {"hare": first})
    recorder(1, {"hare": second})
    found = recorder.summarise_policies()["hare"]
    assert found.model_values == pytest.approx([first.returns(0.9).mean(), second.returns(0.9).mean()])
    assert found.terminated == 0.25
    assert found.running[[4, 5]].tolist() == [1.0, 0.75]
    both = concatenate([first, second])
    assert found.trajectories == pytest.approx(quantile_band(observations_at(both, TIMES, DIMENSIONS)))
    assert found.outside is None
    assert found.outside_share is None


def test_the_share_outside_is_that_of_the_steps_over_time():
    logs = noise_logs([10] * 20)
    lost = replace(logs.select(range(4)), observation=logs.select(range(4)).observation.copy())
    rows = lost.first_observation[:, None] + np.arange(5, 11)
    lost.observation[rows] += 100.0  # from the sixth step on
    recorder = RolloutRecorder(TIMES, DIMENSIONS, 0.9, Support.of(logs))
    recorder(0, {"hare": lost})
    found = recorder.summarise_policies()["hare"]
    assert found.outside is not None
    assert found.outside[:5].max() <= 0.25
    assert found.outside[5:10].tolist() == [1.0] * 5
    assert np.isnan(found.outside[10])  # the last observation answers to no action
    assert found.outside_share == pytest.approx(np.nanmean(found.outside))


def test_a_few_whole_episodes_of_the_first_world_are_kept():
    recorder = RolloutRecorder(TIMES, DIMENSIONS, 0.9)
    assert recorder.sample_episodes() is None
    for world in range(2):
        recorder(world, {"hare": noise_logs([3] * 9, seed=world), "snail": noise_logs([3] * 2)})
    episodes, owner = recorder.sample_episodes()
    assert owner.tolist() == [0] * SAMPLES + [1] * 2
    assert episodes.count == SAMPLES + 2


def test_the_principal_plane_keeps_distances_of_flat_data():
    random = np.random.default_rng(0)
    flat = random.normal(size=(30, 2)) @ random.normal(size=(2, 5))
    placed = project_pca(flat)
    assert np.linalg.norm(placed[3] - placed[7]) == pytest.approx(np.linalg.norm(flat[3] - flat[7]))
    assert project_pca(np.ones((3, 1))).tolist() == [[0.0, 0.0]] * 3


def test_owners_share_the_map_and_few_points_need_no_neighbours():
    latents = np.random.default_rng(0).normal(size=(25, 4))
    owner = np.repeat([LOGGED, 0], [20, 5])
    found = map_latents(latents, owner, np.arange(25.0), points=10)
    assert found.technique == "PCA"
    assert (found.owner == LOGGED).sum() == (found.owner == 0).sum() == 5


def test_where_scikit_learn_is_missing_the_map_says_so(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    latents = np.random.default_rng(0).normal(size=(80, 4))
    assert map_latents(latents, np.zeros(80, int), np.zeros(80)).technique == "PCA"


def test_clusters_stay_apart_on_the_map():
    pytest.importorskip("sklearn", reason="the extra 'report' is not installed")
    random = np.random.default_rng(0)
    owner = np.repeat([0, 1], 40)
    latents = random.normal(size=(80, 6)) + 50.0 * owner[:, None]
    found = map_latents(latents, owner, np.zeros(80))
    assert found.technique == "t-SNE"
    centres = [found.points[found.owner == one].mean(axis=0) for one in (0, 1)]
    spread = max(found.points[found.owner == one].std() for one in (0, 1))
    assert np.linalg.norm(centres[0] - centres[1]) > 2 * spread
