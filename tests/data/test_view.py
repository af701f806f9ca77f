"""EpisodeView: some episodes of a collection, never copied as a whole."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from systems import noise_logs
from vlbm.data.episodes import Episodes
from vlbm.data.view import EpisodeView

CHOSEN = (3, 0, 2)


@pytest.fixture(scope="module")
def episodes() -> Episodes:
    return noise_logs(
        (7, 1, 3, 12, 2), terminated=(True, True, False, True, False), observations=3, actions=2
    )


@pytest.fixture
def selection(episodes) -> EpisodeView:
    return EpisodeView(episodes, np.array(CHOSEN))


def test_a_selection_counts_as_the_same_episodes_in_memory_do(episodes, selection):
    copied = episodes.select(CHOSEN)
    for name in ("count", "steps", "observation_size", "action_size", "discrete", "n_actions"):
        assert getattr(selection, name) == getattr(copied, name), name
    for name in ("length", "terminated"):
        assert getattr(selection, name).tolist() == getattr(copied, name).tolist()
    assert selection.to_episodes().fingerprint() == copied.fingerprint()


def test_all_episodes_are_gathered_without_a_copy(episodes):
    assert EpisodeView.of(episodes).to_episodes() is episodes
    assert EpisodeView.of(EpisodeView.of(episodes)).collection is episodes


@pytest.mark.parametrize("rows", [1, 4, 8, 1000])
def test_blocks_hold_everything_once_and_in_order(episodes, selection, rows, monkeypatch):
    monkeypatch.setattr("vlbm.data.view.BLOCK_ROWS", rows)
    copied = episodes.select(CHOSEN)
    before = copied.observation_before
    for found, expected in (
        (selection.observations(), copied.observation),
        (selection.actions(), copied.action),
        (selection.rewards(), copied.reward[:, None]),
        ((episodes.observation[steps.before] for steps in selection.blocks()), copied.observation[before]),
        (
            (episodes.observation[steps.before + 1] for steps in selection.blocks()),
            copied.observation[before + 1],
        ),
    ):
        blocks = list(found)
        assert {len(block) for block in blocks[:-1]} <= {rows}
        np.testing.assert_array_equal(np.concatenate(blocks), expected)


def test_discrete_actions_come_as_one_hot_vectors():
    episodes = noise_logs((5, 2), n_actions=3)
    (actions,) = EpisodeView.of(episodes).actions()
    np.testing.assert_array_equal(actions, np.eye(3)[episodes.action])


def test_actions_may_be_asked_for_row_by_row_in_any_arrangement(episodes, selection):
    rows = np.array([[0, 5], [5, 24]])  # of the collection, not of the selection
    np.testing.assert_array_equal(selection.action_vectors(rows), episodes.action[rows])


@pytest.mark.parametrize("count", [1, 2, 20])
def test_a_split_is_that_of_the_episodes_themselves(count):
    episodes = noise_logs((3,) * count)
    for mine, theirs in zip(
        EpisodeView.of(episodes).split(0.25, seed=5), episodes.split(0.25, seed=5), strict=True
    ):
        assert mine.to_episodes().fingerprint() == theirs.fingerprint()


def test_a_split_of_a_selection_stays_within_it(episodes, selection):
    parts = selection.split(0.3, seed=0)
    assert sorted([*parts[0].chosen, *parts[1].chosen]) == sorted(CHOSEN)


def test_steps_of_unknown_outcome_are_no_part_of_what_is_learnt_from(episodes):
    unfinished = replace(
        episodes, terminated=np.zeros(5, bool), final_observed=np.array([True, False, False, True, True])
    )
    log = EpisodeView.of(unfinished)
    assert log.chosen.tolist() == [0, 2, 3, 4]  # nothing is left of the second
    assert log.length.tolist() == [7, 2, 12, 2]
    assert log.steps == 23
    rewards = np.concatenate(list(log.rewards()))[:, 0]
    known = unfinished.outcome_known
    np.testing.assert_array_equal(rewards, unfinished.reward[known])
    before = np.concatenate([steps.before for steps in log.blocks()])
    np.testing.assert_array_equal(before, unfinished.observation_before[known])
    assert len(np.concatenate(list(log.observations()))) == 23 + 4
