"""D4RL's HDF5 files in all their layouts."""

from __future__ import annotations

import time
import tracemalloc

import h5py
import numpy as np
import pytest

from vlbm.data.readers import load


def write(path, fields, **options):
    with h5py.File(path, "w") as file:
        for name, values in fields.items():
            file.create_dataset(name, data=values, **options)
    return path


def double(fields):
    return {name: values.astype(np.float64) for name, values in fields.items()}


LAYOUTS = {
    "single precision": lambda fields: fields,
    "double precision": double,
    "flags as bytes": lambda fields: (
        fields | {name: fields[name].astype(np.uint8) for name in ("terminals", "timeouts")}
    ),
    "columns as matrices": lambda fields: (
        fields | {name: fields[name][:, None] for name in ("rewards", "terminals", "timeouts")}
    ),
    "no timeouts": lambda fields: {name: fields[name] for name in fields if name != "timeouts"},
    "last episode unfinished": lambda fields: fields | {"timeouts": fields["timeouts"] & (np.arange(10) < 9)},
    "extra groups": lambda fields: (
        fields | {"infos/qpos": np.full((10, 2), np.nan), "metadata/algorithm": np.bytes_("SAC")}
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same_episodes(layout, tmp_path, logged, fields, assert_same):
    path = write(tmp_path / "data.hdf5", LAYOUTS[layout](fields))
    assert_same(load(path), logged)


def test_small_compressed_chunks_give_the_same_episodes(tmp_path, logged, fields, assert_same, monkeypatch):
    monkeypatch.setattr("vlbm.data.readers.transitions.BLOCK_ROWS", 4)
    with h5py.File(tmp_path / "data.hdf5", "w") as file:
        for name, values in fields.items():
            chunks = (3, *(1 for _ in values.shape[1:]))
            file.create_dataset(name, data=values, chunks=chunks, compression="gzip")
    assert_same(load(tmp_path / "data.hdf5"), logged)


@pytest.mark.parametrize("rows", [1, 2, 3, 10])
def test_blocks_of_any_size_find_the_same_cuts(rows, tmp_path, logged, fields, assert_same, monkeypatch):
    monkeypatch.setattr("vlbm.data.readers.transitions.BLOCK_ROWS", rows)
    del fields["timeouts"]
    assert_same(load(write(tmp_path / "data.hdf5", fields)), logged)


def test_without_log_probabilities_there_are_none(tmp_path, fields):
    del fields["infos/action_log_probs"]
    assert load(write(tmp_path / "data.hdf5", fields)).log_prob is None


def test_a_complete_file_leaves_nothing_to_assume(tmp_path, fields):
    assert load(write(tmp_path / "data.hdf5", fields)).notes == ()


def test_an_unfinished_last_episode_is_cut_off_and_noted(tmp_path, fields):
    fields["timeouts"][-1] = False
    episodes = load(write(tmp_path / "data.hdf5", fields))
    assert not episodes.terminated[-1]
    assert episodes.notes == ("the last episode has no end in the file and is read as cut off there",)


def test_without_timeouts_episodes_are_cut_where_observations_jump(tmp_path, fields):
    del fields["timeouts"]
    episodes = load(write(tmp_path / "data.hdf5", fields))
    assert episodes.notes == (
        "no 'timeouts': episodes are cut where the next row does not go on from them (1 of 10 steps)",
    )


def test_without_any_end_the_file_is_one_episode(tmp_path, fields):
    fields["terminals"][:] = False
    del fields["timeouts"], fields["next_observations"]
    episodes = load(write(tmp_path / "data.hdf5", fields))
    assert episodes.length.tolist() == [10]
    assert episodes.terminated.tolist() == [False]
    np.testing.assert_array_equal(episodes.observation[:10], fields["observations"])
    np.testing.assert_array_equal(episodes.observation[10], fields["observations"][9])
    said = "no next observations: "
    assert episodes.notes == (
        "no 'timeouts' and no step with 'terminals': the whole file is read as one episode",
        said + "what came of the last step of cut-off episodes is unknown (1 of 1 episodes)",
    )


def test_without_next_observations_every_step_stays_and_the_final_observation_repeats(
    tmp_path, fields, logged
):
    del fields["next_observations"]
    episodes = load(write(tmp_path / "data.hdf5", fields))
    assert episodes.length.tolist() == [3, 1, 4, 2]
    assert episodes.terminated.tolist() == [True, True, False, False]
    assert episodes.final_observed.tolist() == [True, True, False, False]
    assert episodes.known_length.tolist() == [3, 1, 3, 1]
    rows = [0, 1, 2, 2, 3, 3, 4, 5, 6, 7, 7, 8, 9, 9]
    np.testing.assert_array_equal(episodes.observation, fields["observations"][rows])
    np.testing.assert_array_equal(episodes.reward, logged.reward)
    np.testing.assert_array_equal(episodes.action, logged.action)
    np.testing.assert_array_equal(episodes.log_prob, logged.log_prob)
    said = "no next observations: "
    assert episodes.notes == (
        said + "terminated episodes repeat their last observation as the final one (2 of 4 episodes)",
        said + "what came of the last step of cut-off episodes is unknown (2 of 4 episodes)",
    )


def test_cut_off_episodes_of_one_step_stay_without_next_observations(tmp_path, fields):
    del fields["next_observations"]
    fields["timeouts"][4] = True  # the third episode becomes one of one step and one of three
    episodes = load(write(tmp_path / "data.hdf5", fields))
    assert episodes.length.tolist() == [3, 1, 1, 3, 2]
    assert episodes.known_length.tolist() == [3, 1, 0, 2, 1]


def test_next_observations_that_contradict_the_steps_after_them_are_noted(tmp_path, fields):
    fields["next_observations"][[0, 5]] += 1
    fields["next_observations"][1] *= 1 + 1e-6  # rounding contradicts nothing
    episodes = load(write(tmp_path / "data.hdf5", fields))
    (note,) = episodes.notes
    assert note.startswith("next observations contradict the observations of the steps after them (2 of 10")
    assert episodes.observation[1].tolist() == fields["observations"][1].tolist()


def test_a_file_of_one_step_is_one_episode(tmp_path, fields):
    one = {name: values[4:5] for name, values in fields.items() if name != "timeouts"}
    episodes = load(write(tmp_path / "data.hdf5", one))
    assert episodes.length.tolist() == [1]
    np.testing.assert_array_equal(episodes.observation[1:], fields["next_observations"][4:5])


def test_numbers_instead_of_vectors_are_vectors_of_one(tmp_path, fields):
    for name in ("observations", "next_observations", "actions"):
        fields[name] = fields[name][:, 0]
    episodes = load(write(tmp_path / "data.hdf5", fields))
    assert episodes.observation.shape == (14, 1)
    assert episodes.action.shape == (10, 1)
    assert not episodes.discrete


@pytest.mark.parametrize("shape", [(10,), (10, 1)])
def test_whole_numbers_as_actions_are_discrete(shape, tmp_path, fields):
    ids = np.array([0, 1, 2, 0, 1, 2, 0, 1, 2, 3], np.uint8)
    path = write(tmp_path / "data.hdf5", fields | {"actions": ids.reshape(shape)})
    episodes = load(path)
    assert episodes.n_actions == 4
    assert episodes.action.tolist() == ids.tolist()
    assert load(path, n_actions=7).n_actions == 7


def test_choices_makes_whole_floats_discrete(tmp_path, fields):
    path = write(tmp_path / "data.hdf5", fields | {"actions": np.arange(10.0) % 3})
    episodes = load(path, n_actions=3)
    assert episodes.n_actions == 3
    assert episodes.action.dtype == np.int32


def one_by_one(fields, *, known):
    """Observations and lengths by a plain loop over steps: slow, and plainly right."""
    observation, length, current = [], [], []
    for row in range(len(fields["rewards"])):
        current.append(fields["observations"][row])
        if fields["terminals"][row] or fields["timeouts"][row] or row == len(fields["rewards"]) - 1:
            if known:
                current.append(fields["next_observations"][row])
            else:
                current.append(current[-1])
            observation += current
            length.append(len(current) - 1)
            current = []
    return np.array(observation), length


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("seed", range(10))
def test_placing_agrees_with_a_plain_loop(seed, known, tmp_path, monkeypatch):
    rng = np.random.default_rng(seed)
    monkeypatch.setattr("vlbm.data.readers.transitions.BLOCK_ROWS", int(rng.integers(1, 20)))
    fields = {
        "observations": rng.normal(size=(50, 2)).astype(np.float32),
        "next_observations": rng.normal(size=(50, 2)).astype(np.float32),
        "actions": rng.normal(size=(50, 1)),
        "rewards": rng.normal(size=50),
        "terminals": rng.random(50) < 0.2,
        "timeouts": rng.random(50) < 0.3,
    }
    observation, length = one_by_one(fields, known=known)
    if not known:
        del fields["next_observations"]
    episodes = load(write(tmp_path / "data.hdf5", fields))
    assert episodes.length.tolist() == length
    np.testing.assert_array_equal(episodes.observation, observation)
    assert len(episodes.action) == len(episodes.reward) == sum(length)


def test_half_a_million_steps_load_fast_and_once(tmp_path):
    count = 500_000
    observation = np.random.default_rng(0).standard_normal((count, 17), dtype=np.float32)
    timeouts = np.arange(1, count + 1) % 1000 == 0
    path = write(
        tmp_path / "data.hdf5",
        {
            "observations": observation,
            "next_observations": observation,
            "actions": observation[:, :6],
            "rewards": observation[:, 0],
            "terminals": np.zeros(count, bool),
            "timeouts": timeouts,
        },
    )
    began = time.perf_counter()
    episodes = load(path)
    # Generous, because test machines are busy; it takes a tenth of a second.
    assert time.perf_counter() - began < 5
    assert (episodes.count, episodes.steps) == (500, count)

    tracemalloc.start()
    load(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    weight = episodes.observation.nbytes + episodes.action.nbytes + episodes.reward.nbytes
    assert peak < 2 * weight


def test_the_human_door_demonstrations_load(shared):
    episodes = load(shared / "dope" / "data" / "door-human.hdf5")
    assert (episodes.count, episodes.observation_size, episodes.action_size) == (25, 39, 28)
    assert episodes.steps == 6729
    assert episodes.known_length.sum() == 6729 - 25  # there are no next observations
    assert any("what came of the last step" in note for note in episodes.notes)
