"""The 32 tasks of DOPE are listed, found under every name that their files have, and loaded as published."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest
from dope_files import write_d4rl, write_policies

import vlbm
from vlbm.data.readers import save_npz
from vlbm.errors import InputError
from vlbm.policies.dope import read_dope
from vlbm.suites import dope
from vlbm.suites.dope.targets import drop_last_inputs

SIZES = {  # environment: observations, actions, horizon, data sets
    "ant": (27, 8, 1000, 5),
    "halfcheetah": (17, 6, 1000, 5),
    "hopper": (11, 3, 1000, 5),
    "walker2d": (17, 6, 1000, 5),
    "pen": (45, 24, 100, 3),
    "door": (39, 28, 200, 3),
    "hammer": (46, 26, 200, 3),
    "relocate": (39, 30, 200, 3),
}


@pytest.fixture(autouse=True)
def nothing_at_hand(monkeypatch, tmp_path):
    monkeypatch.delenv("VLBM_DOPE", raising=False)
    monkeypatch.setenv("VLBM_CACHE", str(tmp_path / "cache"))


def test_all_32_tasks_are_listed_with_their_sizes_and_11_policies():
    assert len(dope.list_names()) == len(set(dope.list_names())) == 32
    for environment, (observations, actions, horizon, datasets) in SIZES.items():
        mine = [name for name in dope.list_names() if name.startswith(f"dope/{environment}-")]
        assert len(mine) == datasets
        for name in mine:
            entry = dope.make_entry(name)
            assert (entry.name, entry.suite) == (name, "dope")
            assert (entry.observation_size, entry.action_size) == (observations, actions)
            assert entry.policies == 11
            assert entry.steps > 4000
            assert not entry.available
            assert dope.find_problem(name).horizon == horizon


def test_the_two_truths_are_never_mixed():
    hopper = dope.find_problem("dope/hopper-medium")
    discounted, undiscounted = hopper.truth("discounted"), hopper.truth("undiscounted")
    assert (discounted.discount, discounted.actions) == (0.995, "mean")
    assert (undiscounted.discount, undiscounted.actions) == (1.0, "sample")
    assert discounted.values["hopper_online_8"] == pytest.approx(572.6359650079272)
    assert undiscounted.values["hopper_online_8"] == pytest.approx(2952.957468938808)
    assert hopper.truth() == discounted
    assert list(dope.true_returns("dope/hopper-medium")) == [
        "discounted, mean actions",
        "undiscounted, sampled actions",
    ]


def test_adroit_has_no_discounted_truth_and_none_is_made_up():
    door = dope.find_problem("dope/door-human")
    assert door.truth().discount == 1.0
    assert door.truth().values["door_dapg_10"] == pytest.approx(2974.9306587121887)
    assert list(dope.true_returns("dope/door-human")) == ["undiscounted, sampled actions"]
    with pytest.raises(InputError, match="no discounted returns are published for door"):
        door.truth("discounted")
    with pytest.raises(InputError, match="neither 'discounted' nor"):
        door.truth("average")


def test_data_sets_of_one_environment_share_policies_and_truths():
    one, other = dope.find_problem("dope/walker2d-random"), dope.find_problem("dope/walker2d-expert")
    assert one.policies == other.policies
    assert one.truth() == other.truth()
    assert one.data != other.data


def test_an_unknown_task_is_refused():
    with pytest.raises(InputError, match="dope/hopper-human: is no task"):
        dope.make_entry("dope/hopper-human")


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("hopper-medium", "hopper_medium-v2.hdf5"),
        ("hopper-medium-replay", "hopper_medium_replay-v2.hdf5"),
        ("hopper-medium-replay", "hopper-medium-replay-v2.hdf5"),
        ("hopper-medium-expert", "gym_mujoco_v2/hopper_medium_expert-v2.hdf5"),
        ("hopper-random", "datasets/hopper_random-v2.hdf5"),
        ("hopper-expert", "data/hopper_expert-v2.hdf5"),
        ("door-human", "door-human-v1.hdf5"),
        ("door-human", "data/door-human.hdf5"),
        ("door-cloned", "door-cloned-v0.hdf5"),
        ("door-cloned", "door-demos-v0-bc-combined.hdf5"),
        ("door-human", "hand_dapg/door-v0_demos_clipped.hdf5"),
        ("door-expert", "hand_dapg_v1/door-expert-v1.hdf5"),
    ],
)
def test_data_are_found_by_the_names_that_d4rl_gives_them(tmp_path, name, file):
    observations, actions, horizon, _ = SIZES[name.partition("-")[0]]
    write_d4rl(tmp_path / "here" / file, observations=observations, actions=actions)
    write_policies(tmp_path / "here", name.partition("-")[0])
    task = dope.load_task(f"dope/{name}", data=tmp_path / "here")
    assert task.name == f"dope/{name}"
    assert (task.episodes.count, task.episodes.steps, task.horizon) == (3, 12, horizon)
    assert list(task.policies) == list(task.truth)
    assert len(task.policies) == 11
    assert not task.regenerated


def test_the_file_of_one_data_set_is_not_taken_for_that_of_another(tmp_path):
    write_d4rl(tmp_path / "hopper_medium_expert-v2.hdf5", observations=11, actions=3)
    write_d4rl(tmp_path / "hopper_medium.hdf5", observations=11, actions=3)  # version 0 of D4RL
    with pytest.raises(InputError, match="is not in"):
        dope.load_task("dope/hopper-medium", data=tmp_path)


def test_one_variable_names_the_directory_of_data_and_policies(tmp_path, monkeypatch):
    write_d4rl(tmp_path / "data" / "walker2d_expert-v2.hdf5", observations=17, actions=6)
    write_policies(tmp_path, "walker2d")
    assert (tmp_path / "walker" / "walker_online_10.pkl").is_file()
    monkeypatch.setenv("VLBM_DOPE", str(tmp_path))
    assert dope.make_entry("dope/walker2d-expert").available
    assert not dope.make_entry("dope/walker2d-medium").available
    task = dope.load_task("dope/walker2d-expert")
    assert task.episodes.terminated.tolist() == [False, True, False]
    assert task.episodes.log_prob is not None
    assert (task.discount, task.horizon) == (0.995, 1000)
    other = dope.load_task("dope/walker2d-expert", truth="undiscounted")
    assert other.discount == 1.0
    assert other.truth["walker_online_0"] != task.truth["walker_online_0"]
    monkeypatch.setenv("VLBM_DOPE", str(tmp_path / "elsewhere"))
    with pytest.raises(InputError, match="elsewhere: is no directory, but VLBM_DOPE names it"):
        dope.load_task("dope/walker2d-expert")


def test_data_and_policies_may_come_from_different_places(tmp_path):
    file = write_d4rl(tmp_path / "my own name.hdf5", observations=11, actions=3)
    write_policies(tmp_path / "theirs", "hopper")
    task = dope.load_task("dope/hopper-random", data=file, policies=tmp_path / "theirs")
    assert task.episodes.steps == 12
    flat = dope.load_task("dope/hopper-random", data=str(file), policies=tmp_path / "theirs" / "hopper")
    np.testing.assert_array_equal(
        flat.policies["hopper_online_4"].head.weight, task.policies["hopper_online_4"].head.weight
    )
    assert any("the published data have 999999" in note for note in task.episodes.notes)


def test_a_minari_port_of_the_data_is_read(tmp_path):
    gymnasium = pytest.importorskip("gymnasium")
    minari = pytest.importorskip("minari")
    from minari.data_collector.episode_buffer import EpisodeBuffer

    rng = np.random.default_rng(0)
    episodes = [
        EpisodeBuffer(
            observations=rng.normal(size=(steps + 1, 11)),
            actions=rng.uniform(-1, 1, size=(steps, 3)).astype(np.float32),
            rewards=[1.0] * steps,
            terminations=[False] * steps,
            truncations=[False] * (steps - 1) + [True],
        )
        for steps in (4, 6)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
        minari.create_dataset_from_buffers(
            "mujoco/hopper/medium-v0",
            episodes,
            observation_space=gymnasium.spaces.Box(-np.inf, np.inf, (11,), np.float64),
            action_space=gymnasium.spaces.Box(-1, 1, (3,), np.float32),
        )
        write_policies(tmp_path, "hopper")
        named = dope.load_task("dope/hopper-medium", data="minari:mujoco/hopper/medium-v0", policies=tmp_path)
        placed = dope.load_task(
            "dope/hopper-medium", data=tmp_path / "minari/mujoco/hopper/medium-v0", policies=tmp_path
        )
    assert named.episodes.length.tolist() == placed.episodes.length.tolist() == [4, 6]


def test_a_missing_file_says_what_it_is_where_to_get_it_and_where_to_put_it(tmp_path, monkeypatch):
    with pytest.raises(InputError) as nowhere:
        dope.load_task("dope/hopper-medium")
    for part in (
        "hopper_medium-v2.hdf5: is not in",
        "http://rail.eecs.berkeley.edu/datasets/offline_rl/gym_mujoco_v2/hopper_medium-v2.hdf5",
        "VLBM_DOPE",
        "download=True",
    ):
        assert part in str(nowhere.value)
    write_d4rl(tmp_path / "data" / "door-human-v1.hdf5", observations=39, actions=28)
    monkeypatch.setenv("VLBM_DOPE", str(tmp_path))
    with pytest.raises(InputError) as policy:
        dope.load_task("dope/door-human")
    assert "https://storage.googleapis.com/gresearch/deep-ope/d4rl/door/door_dapg_0.pkl" in str(policy.value)
    assert f"put it at {tmp_path / 'door' / 'door_dapg_0.pkl'}" in str(policy.value)
    with pytest.raises(InputError, match="no such file"):
        dope.load_task("dope/hopper-medium", data=tmp_path / "nothing.hdf5")
    with pytest.raises(InputError, match="is no directory"):
        dope.load_task("dope/door-human", policies=tmp_path / "nothing")


def test_damaged_files_are_named(tmp_path):
    whole = write_d4rl(tmp_path / "hopper_medium-v2.hdf5", observations=11, actions=3)
    write_policies(tmp_path, "hopper")
    content = whole.read_bytes()
    whole.write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError, match=r"hopper_medium-v2.hdf5: cannot be read as HDF5"):
        dope.load_task("dope/hopper-medium", data=tmp_path)
    whole.write_bytes(content)
    policy = tmp_path / "hopper" / "hopper_online_3.pkl"
    policy.write_bytes(policy.read_bytes()[:200])
    with pytest.raises(InputError, match=r"hopper_online_3.pkl: not a readable pickle"):
        dope.load_task("dope/hopper-medium", data=tmp_path)


def test_the_data_and_policies_of_another_environment_are_refused(tmp_path):
    wrong = write_d4rl(tmp_path / "a.hdf5", observations=17, actions=6)
    with pytest.raises(InputError, match=r"a.hdf5: has 17 observations, dope/hopper-medium has 11"):
        dope.load_task("dope/hopper-medium", data=wrong)
    wrong = write_d4rl(tmp_path / "b.hdf5", observations=11, actions=6)
    with pytest.raises(InputError, match=r"b.hdf5: has 6 actions, dope/hopper-medium has vectors of 3"):
        dope.load_task("dope/hopper-medium", data=wrong)
    right = write_d4rl(tmp_path / "c.hdf5", observations=11, actions=3)
    write_policies(tmp_path, "walker2d")
    write_policies(tmp_path, "hopper")
    (tmp_path / "walker" / "walker_online_5.pkl").replace(tmp_path / "hopper" / "hopper_online_5.pkl")
    with pytest.raises(InputError, match=r"hopper_online_5.pkl: takes 17 observations and gives 6 numbers"):
        dope.load_task("dope/hopper-medium", data=right, policies=tmp_path)


@pytest.mark.parametrize("observations", [27, 111])
def test_ant_policies_fit_data_with_and_without_contact_forces(tmp_path, observations):
    write_d4rl(tmp_path / "ant_expert-v2.hdf5", observations=observations, actions=8)
    write_policies(tmp_path, "ant")
    task = dope.load_task("dope/ant-expert", data=tmp_path)
    assert {policy.observation_size for policy in task.policies.values()} == {observations}
    rows = np.random.default_rng(1).normal(size=(5, observations)).astype(np.float32)
    padded = np.pad(rows, ((0, 0), (0, 111 - observations)))
    key = jax.random.key(0)
    for name, policy in task.policies.items():
        whole = read_dope(tmp_path / "ant" / f"{name}.pkl")
        np.testing.assert_allclose(policy.mean(rows), whole.mean(padded), atol=1e-6)
        np.testing.assert_allclose(policy.sample(rows, key=key), whole.sample(padded, key=key), atol=1e-6)
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *task.policies.values())
    assert jax.vmap(lambda policy: policy.mean(rows))(stacked).shape == (11, 5, 8)


def test_leaving_out_inputs_is_padding_with_zeros_for_densities_too(tmp_path):
    write_policies(tmp_path, "ant")
    whole = read_dope(tmp_path / "ant" / "ant_online_0.pkl")
    narrow = drop_last_inputs(whole, 27)
    rows = np.random.default_rng(2).normal(size=(4, 27)).astype(np.float32)
    padded = np.pad(rows, ((0, 0), (0, 84)))
    action = np.random.default_rng(3).uniform(-0.9, 0.9, (4, 8)).astype(np.float32)
    np.testing.assert_allclose(narrow.log_prob(rows, action), whole.log_prob(padded, action), rtol=1e-5)


def test_ants_data_of_any_other_size_are_refused(tmp_path):
    file = write_d4rl(tmp_path / "ant.hdf5", observations=105, actions=8)
    with pytest.raises(InputError, match="has 105 observations, dope/ant-medium has 27 or 111"):
        dope.load_task("dope/ant-medium", data=file)


def test_adroit_clips_actions_of_data_and_policies(tmp_path):
    write_d4rl(
        tmp_path / "door-human-v1.hdf5", observations=39, actions=28, next_observations=False, reach=2.0
    )
    write_policies(tmp_path, "door")
    task = dope.load_task("dope/door-human", data=tmp_path)
    assert np.abs(task.episodes.action).max() == 1.0
    assert any("clipped to [-1, 1]" in note for note in task.episodes.notes)
    assert task.episodes.length.tolist() == [4, 3, 5]
    assert task.episodes.known_length.tolist() == [3, 3, 4]  # nothing says what came of the last steps
    rows = 100 * np.random.default_rng(4).normal(size=(50, 39)).astype(np.float32)
    for policy in task.policies.values():
        assert np.abs(policy.sample(rows, key=jax.random.key(0))).max() == 1.0


def test_episodes_at_hand_make_a_task_and_say_if_they_are_regenerated(tmp_path):
    file = write_d4rl(tmp_path / "data.hdf5", observations=11, actions=3)
    write_policies(tmp_path, "hopper")
    episodes = vlbm.load(file)
    assert not dope.make_task("dope/hopper-medium", episodes, policies=tmp_path).regenerated
    again = replace(episodes, notes=("regenerated: simulated here",))
    assert dope.make_task("dope/hopper-medium", again, policies=tmp_path).regenerated
    save_npz(again, tmp_path / "again.npz")
    kept = dope.load_task("dope/hopper-medium", data=tmp_path / "again.npz", policies=tmp_path)
    assert kept.regenerated
