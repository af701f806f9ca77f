"""Episodes: experience, logged or imagined."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from vlbm.data.episodes import Episodes, concatenate, from_padded
from vlbm.errors import InputError


@pytest.fixture
def episodes() -> Episodes:
    """Three episodes of 3, 1 and 2 steps; every number says which episode and step it belongs to."""
    return Episodes(
        observation=np.array([[0.0], [0.1], [0.2], [0.3], [1.0], [1.1], [2.0], [2.1], [2.2]], np.float32),
        action=np.array([[0, 10], [1, 11], [2, 12], [100, 110], [200, 210], [201, 211]], np.float32),
        reward=np.array([1, 2, 4, 8, 16, 32], np.float32),
        length=np.array([3, 1, 2]),
        terminated=np.array([True, False, True]),
        log_prob=-np.arange(6, dtype=np.float32),
        notes=("assumed",),
    )


def single() -> Episodes:
    return Episodes(
        observation=np.array([[5.0], [6.0]], np.float32),
        action=np.array([2]),
        reward=np.array([3.0], np.float32),
        length=np.array([1]),
        terminated=np.array([True]),
        n_actions=4,
    )


def test_sizes_are_counted(episodes):
    assert (episodes.count, episodes.steps) == (3, 6)
    assert (episodes.observation_size, episodes.action_size, episodes.discrete) == (1, 2, False)
    assert (single().observation_size, single().action_size, single().discrete) == (1, 4, True)


def test_rows_of_steps_and_observations_are_found(episodes):
    assert episodes.first_step.tolist() == [0, 3, 4]
    assert episodes.first_observation.tolist() == [0, 4, 6]
    assert episodes.episode_of_step.tolist() == [0, 0, 0, 1, 2, 2]
    assert episodes.time.tolist() == [0, 1, 2, 0, 0, 1]
    assert episodes.observation_before.tolist() == [0, 1, 2, 4, 6, 7]
    assert episodes.initial_observations().tolist() == [[0.0], [1.0], [2.0]]


def test_returns_add_the_rewards_of_each_episode(episodes):
    assert episodes.returns().tolist() == [7.0, 8.0, 48.0]


def test_returns_discount_by_the_step_within_the_episode(episodes):
    assert episodes.returns(0.5).tolist() == [1 + 1 + 1, 8, 16 + 16]


def test_discount_zero_keeps_only_the_first_reward(episodes):
    assert episodes.returns(0.0).tolist() == [1.0, 8.0, 16.0]


def test_returns_end_at_the_horizon(episodes):
    assert episodes.returns(0.5, horizon=2).tolist() == [1 + 1, 8, 16 + 16]
    assert episodes.returns(horizon=1).tolist() == [1, 8, 16]


@pytest.mark.parametrize("block", [1, 2, 3, 4, 5, 100])
def test_returns_do_not_depend_on_how_many_steps_are_taken_at_once(episodes, block, monkeypatch):
    expected = episodes.returns(0.9)
    monkeypatch.setattr("vlbm.data.episodes.BLOCK_STEPS", block)
    assert episodes.returns(0.9).tolist() == expected.tolist()


def test_returns_are_computed_in_double_precision():
    many = Episodes(
        observation=np.zeros((10_001, 1), np.float32),
        action=np.zeros((10_000, 1), np.float32),
        reward=np.full(10_000, 2.0**24 + 2, np.float32),
        length=np.array([10_000]),
        terminated=np.array([False]),
    )
    assert many.returns().tolist() == [10_000 * (2.0**24 + 2)]


def test_select_takes_whole_episodes_in_the_order_given(episodes):
    chosen = episodes.select([2, 0])
    assert chosen.length.tolist() == [2, 3]
    assert chosen.reward.tolist() == [16, 32, 1, 2, 4]
    assert chosen.observation[:, 0].tolist() == np.float32([2.0, 2.1, 2.2, 0.0, 0.1, 0.2, 0.3]).tolist()
    assert chosen.action[:, 0].tolist() == [200, 201, 0, 1, 2]
    assert chosen.terminated.tolist() == [True, True]
    assert chosen.log_prob.tolist() == [-4, -5, 0, -1, -2]
    assert chosen.notes == ("assumed",)


def test_select_may_repeat_an_episode(episodes):
    assert episodes.select([1, 1, 1]).reward.tolist() == [8, 8, 8]


def test_select_keeps_the_absence_of_log_probabilities(episodes):
    assert replace(episodes, log_prob=None).select([0]).log_prob is None


def numbered(count: int) -> Episodes:
    return Episodes(
        observation=np.zeros((2 * count, 1), np.float32),
        action=np.zeros((count, 1), np.float32),
        reward=np.arange(count, dtype=np.float32),
        length=np.ones(count, np.int64),
        terminated=np.ones(count, bool),
    )


@pytest.mark.parametrize(
    ("count", "fraction", "held_out"), [(10, 0.3, 3), (10, 0.0, 1), (10, 1.0, 9), (2, 0.5, 1), (3, 0.01, 1)]
)
def test_split_is_disjoint_and_complete(count, fraction, held_out):
    training, validation = numbered(count).split(fraction, seed=0)
    assert validation.count == held_out
    assert not set(training.reward) & set(validation.reward)
    assert sorted([*training.reward, *validation.reward]) == list(range(count))


def test_split_depends_on_the_seed_alone():
    first, second, other = (numbered(50).split(0.2, seed=seed)[1].reward.tolist() for seed in (1, 1, 2))
    assert first == second
    assert first != other


def test_a_single_episode_stands_on_both_sides_of_a_split():
    training, validation = single().split(0.2, seed=0)
    assert training.reward.tolist() == validation.reward.tolist() == [3.0]


def test_padding_holds_zeros_and_is_not_valid(episodes):
    padded = episodes.pad()
    assert padded.valid.tolist() == [[True] * 3, [True, False, False], [True, True, False]]
    assert padded.reward.tolist() == [[1, 2, 4], [8, 0, 0], [16, 32, 0]]
    assert padded.observation[1, :, 0].tolist() == np.float32([1.0, 1.1, 0, 0]).tolist()
    assert padded.action.shape == (3, 3, 2)
    assert padded.action[1, 1:].tolist() == [[0, 0], [0, 0]]


def test_padding_reaches_as_far_as_asked(episodes):
    padded = episodes.pad(5)
    assert padded.observation.shape == (3, 6, 1)
    assert padded.valid.sum(axis=1).tolist() == [3, 1, 2]


@pytest.mark.parametrize("steps", [None, 7])
def test_from_padded_undoes_padded(steps, episodes):
    padded = episodes.pad(steps)
    back = from_padded(
        observation=padded.observation,
        action=padded.action,
        reward=padded.reward,
        length=episodes.length,
        terminated=episodes.terminated,
    )
    for name in ("observation", "action", "reward", "length", "terminated"):
        np.testing.assert_array_equal(getattr(back, name), getattr(episodes, name), err_msg=name)


def test_discrete_actions_pad_to_a_matrix():
    padded = single().pad(3)
    assert padded.action.tolist() == [[2, 0, 0]]
    back = from_padded(
        observation=padded.observation,
        action=padded.action,
        reward=padded.reward,
        length=np.array([1]),
        terminated=np.array([True]),
        n_actions=4,
    )
    assert back.action.tolist() == [2]
    assert back.n_actions == 4


def test_concatenate_undoes_select(episodes):
    back = concatenate([episodes.select([0]), episodes.select([1, 2])])
    for name in ("observation", "action", "reward", "length", "terminated", "log_prob"):
        np.testing.assert_array_equal(getattr(back, name), getattr(episodes, name), err_msg=name)
    assert back.notes == ("assumed",)


def test_concatenate_drops_log_probabilities_that_one_part_lacks(episodes):
    assert concatenate([episodes, replace(episodes, log_prob=None)]).log_prob is None


def test_concatenate_keeps_the_largest_number_of_choices():
    assert concatenate([single(), replace(single(), n_actions=9)]).n_actions == 9


def test_episodes_of_one_step_have_two_observations():
    one = single()
    assert one.observation_before.tolist() == [0]
    assert one.time.tolist() == [0]
    assert one.returns(0.9).tolist() == [3.0]
    assert one.pad().observation.tolist() == [[[5.0], [6.0]]]


# From what users hold

STEPS = {
    "observations": [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0], [6.0, 7.0]],
    "actions": [[0.5], [1.5], [2.5], [3.5]],
    "rewards": [1.0, 2.0, 3.0, 4.0],
    "terminations": [0, 1, 0, 0],
    "truncations": [0, 0, 0, 1],
    "next_observations": [[2.0, 3.0], [9.0, 9.0], [6.0, 7.0], [8.0, 9.0]],
}
FRAME = {
    "stay": [7, 7, 8, 8],
    "age": [0.0, 2.0, 4.0, 6.0],
    "pulse": [1.0, 3.0, 5.0, 7.0],
    "action": [0, 1, 2, 1],
    "reward": [1.0, 2.0, 3.0, 4.0],
    "terminated": [False, True, False, True],
}


def test_arrays_become_episodes_with_what_followed_their_last_steps():
    made = Episodes.from_arrays(**STEPS)
    np.testing.assert_array_equal(made.length, [2, 2])
    np.testing.assert_array_equal(made.terminated, [True, False])
    np.testing.assert_array_equal(made.observation[:, 0], [0, 2, 9, 4, 6, 8])
    np.testing.assert_array_equal(made.reward, [1, 2, 3, 4])
    assert made.notes == ()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rewards": [1.0, np.nan, 3.0, 4.0]}, "'rewards' holds nan in row 1"),
        ({"actions": [[1.0]]}, "'actions' has 1 rows"),
        ({"terminations": [0, 2, 0, 0]}, "must be 0 or 1"),
    ],
)
def test_arrays_are_checked_as_files_are(wrong, message):
    with pytest.raises(InputError, match=message):
        Episodes.from_arrays(**{**STEPS, **wrong})


def frame_of(kind: str):
    if kind == "pandas":
        return pytest.importorskip("pandas").DataFrame(FRAME)
    return pa.table(FRAME) if kind == "arrow" else FRAME


@pytest.mark.parametrize("kind", ["pandas", "arrow", "mapping"])
def test_a_frame_becomes_episodes_by_the_names_of_its_columns(kind):
    made = Episodes.from_dataframe(frame_of(kind), observation=["age", "pulse"], episode="stay", n_actions=4)
    assert (made.count, made.steps, made.n_actions) == (2, 4, 4)
    np.testing.assert_array_equal(made.initial_observations(), [[0, 1], [4, 5]])
    np.testing.assert_array_equal(made.action, [0, 1, 2, 1])


def test_a_frame_that_cannot_be_read_is_refused_by_what_is_wrong_with_it():
    with pytest.raises(InputError, match="no column looks like the observation"):
        Episodes.from_dataframe(FRAME)
    with pytest.raises(InputError, match="there is no option 'observatoin'"):
        Episodes.from_dataframe(FRAME, observatoin="age")
    with pytest.raises(InputError, match="a float cannot be read as a table"):
        Episodes.from_dataframe(3.0)


def test_a_minari_data_set_may_be_given_itself_or_by_its_folder(tmp_path, monkeypatch):
    minari = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    from gymnasium.spaces import Box, Discrete

    buffer = minari.data_collector.EpisodeBuffer(
        id=0,
        observations=np.arange(6, dtype=np.float32).reshape(3, 2),
        actions=np.array([1, 0]),
        rewards=[1.0, 2.0],
        terminations=[False, True],
        truncations=[False, False],
    )
    dataset = minari.create_dataset_from_buffers(
        "test/kept-v0", [buffer], observation_space=Box(-9, 9, (2,), np.float32), action_space=Discrete(2)
    )
    for given in (dataset, "test/kept-v0", tmp_path / "test" / "kept-v0"):
        made = Episodes.from_minari(given)
        assert (made.count, made.steps, made.n_actions) == (1, 2, 2)
        np.testing.assert_array_equal(made.observation, np.arange(6).reshape(3, 2))


def test_its_text_tells_sizes_and_no_numbers(episodes):
    assert repr(episodes) == (
        "Episodes(3 episodes, 6 steps, observations of 1 numbers, actions of 2 numbers, 2 terminated)"
    )
    assert "4 discrete actions" in repr(single())


def test_gamma_is_another_name_for_the_discount(episodes):
    np.testing.assert_array_equal(episodes.returns(gamma=0.5), episodes.returns(0.5))


# Outcomes that were not recorded


@pytest.fixture
def unfinished(episodes) -> Episodes:
    """The second and third episodes lack their final observation."""
    return replace(
        episodes, terminated=np.array([True, False, False]), final_observed=np.array([True, False, False])
    )


def test_steps_whose_outcome_is_unknown_are_the_last_of_their_episodes(episodes, unfinished):
    assert unfinished.known_length.tolist() == [3, 0, 1]
    assert unfinished.outcome_known.tolist() == [True, True, True, False, True, False]
    assert episodes.known_length.tolist() == [3, 1, 2]
    assert episodes.outcome_known.all()
    assert unfinished.returns().tolist() == episodes.returns().tolist()


def test_unknown_outcomes_survive_selecting_and_joining(episodes, unfinished):
    assert unfinished.select([2, 0]).final_observed.tolist() == [False, True]
    joined = concatenate([episodes, unfinished])
    assert joined.final_observed.tolist() == [True, True, True, True, False, False]
    assert concatenate([episodes, episodes]).final_observed is None


def test_a_checksum_tells_unknown_outcomes_apart_and_no_others(episodes, unfinished):
    finished = replace(unfinished, final_observed=None)
    assert unfinished.fingerprint() != finished.fingerprint()
    assert replace(finished, final_observed=np.ones(3, bool)).fingerprint() == finished.fingerprint()
    # Known from before there were any: saved runs name it.
    assert episodes.fingerprint() == "60dc90b93319c26abd0acea5f5ba937f"


def test_names_survive_joining_where_all_parts_share_them(episodes):
    named = replace(episodes, observation_names=("tilt",), action_names=("left", "right"))
    assert concatenate([named, named]).observation_names == ("tilt",)
    assert named.select([0]).action_names == ("left", "right")
    other = replace(named, observation_names=("speed",))
    assert concatenate([named, other]).observation_names is None
    assert concatenate([named, other]).action_names == ("left", "right")


def test_arrays_without_what_follows_keep_their_last_steps():
    made = Episodes.from_arrays(**{**STEPS, "next_observations": None})
    assert made.reward.tolist() == [1, 2, 3, 4]
    assert made.final_observed.tolist() == [True, False]
    ended = Episodes.from_arrays(**{**STEPS, "next_observations": None, "terminations": [0, 1, 0, 1]})
    assert ended.final_observed is None


def test_arrays_may_hold_propensities():
    chances = [0.5, 0.25, 1.0, 0.125]
    made = Episodes.from_arrays(**STEPS, propensities=chances)
    np.testing.assert_allclose(made.log_prob, np.log(chances), rtol=1e-6)
    with pytest.raises(InputError, match="has both 'log_probs' and 'propensities'"):
        Episodes.from_arrays(**STEPS, propensities=chances, log_probs=np.log(chances))
    with pytest.raises(InputError, match=r"'propensities' holds 1\.5 in row 0"):
        Episodes.from_arrays(**STEPS, propensities=[1.5, 1, 1, 1])


def test_contradicting_arrays_are_noted():
    wrong = [[2.0, 3.5], *STEPS["next_observations"][1:]]
    (note,) = Episodes.from_arrays(**{**STEPS, "next_observations": wrong}).notes
    assert note.startswith("next observations contradict")
    assert "(1 of 4 steps)" in note
