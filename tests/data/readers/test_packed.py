"""Packed folders: mapped, not read."""

from __future__ import annotations

import json
from dataclasses import replace

import h5py
import numpy as np
import pytest

from vlbm.data.episodes import Episodes, concatenate
from vlbm.data.readers import is_data, load, pack, save_npz, save_packed
from vlbm.data.readers.packed import allocate_in
from vlbm.errors import InputError


def is_mapped(values: np.ndarray) -> bool:
    return isinstance(values, np.memmap)


def test_packed_episodes_come_back_exactly_and_stay_on_disk(tmp_path, logged, assert_same):
    original = replace(logged, notes=("a note", "another"))
    save_packed(original, tmp_path / "packed")
    back = load(tmp_path / "packed")
    assert is_data(tmp_path / "packed")
    assert_same(back, original)
    assert back.notes == original.notes
    assert back.mapped
    assert all(is_mapped(values) for values in (back.observation, back.action, back.reward, back.log_prob))
    assert back.fingerprint() == original.fingerprint()
    assert not original.mapped


def test_unknown_outcomes_and_names_survive_packing(tmp_path, logged, assert_same):
    part = replace(
        logged, final_observed=np.array([True, True, False, True]), observation_names=("tilt", "speed")
    )
    back = save_packed([part, replace(part, final_observed=None)], tmp_path / "packed")
    assert_same(back, concatenate([part, replace(part, final_observed=None)]))
    assert back.final_observed.tolist() == [True, True, False, True, True, True, True, True]
    assert back.observation_names == ("tilt", "speed")
    assert back.action_names is None


def test_parts_are_written_one_after_another(tmp_path, logged, assert_same):
    more = replace(logged.select([2, 0]), notes=("of the second",))
    back = save_packed(iter([logged, more]), tmp_path / "packed")
    assert_same(back, concatenate([logged, more]))
    assert back.notes == ("of the second",)


def test_ids_keep_their_number_of_choices(tmp_path, logged, assert_same):
    ids = replace(logged, action=np.arange(10) % 3, n_actions=5)
    assert_same(
        save_packed([ids, replace(ids, n_actions=7)], tmp_path / "packed").select(range(4)),
        replace(ids, n_actions=7),
    )
    assert load(tmp_path / "packed", n_actions=9).n_actions == 9
    with pytest.raises(InputError, match="has 7 discrete actions, more than n_actions=6"):
        load(tmp_path / "packed", n_actions=6)


def write_hdf5(path, fields):
    with h5py.File(path, "w") as file:
        for name, values in fields.items():
            file[name] = values


def write_flat(path, fields):
    with open(path, "wb") as file:
        np.savez_compressed(
            file, **{name.replace("infos/action_", ""): values for name, values in fields.items()}
        )


@pytest.mark.parametrize("write", [write_hdf5, write_flat])
@pytest.mark.parametrize(
    "without", [(), ("next_observations",), ("next_observations", "infos/action_log_probs")]
)
def test_a_file_packs_to_what_loading_it_gives(tmp_path, fields, assert_same, write, without):
    write(tmp_path / "data", {name: values for name, values in fields.items() if name not in without})
    packed, loaded = pack(tmp_path / "data", tmp_path / "packed"), load(tmp_path / "data")
    assert_same(packed, loaded)
    assert packed.notes == loaded.notes
    assert packed.mapped
    assert not loaded.mapped
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "packed"]


def test_our_own_npz_files_and_tables_pack_too(tmp_path, logged, assert_same):
    save_npz(logged, tmp_path / "data.npz")
    assert_same(pack(tmp_path / "data.npz", tmp_path / "one"), logged)
    (tmp_path / "data.csv").write_text("run,obs_0,action,reward\n0,1.5,0,1\n0,2.5,1,1\n1,2.5,1,1\n1,2,1,1\n")
    assert_same(
        pack(tmp_path / "data.csv", tmp_path / "two", episode="run", n_actions=3),
        load(tmp_path / "data.csv", episode="run", n_actions=3),
    )


def test_a_broken_number_is_refused_by_name_and_leaves_nothing(tmp_path, logged, fields):
    broken = logged.observation.copy()
    broken[7, 1] = np.nan
    with pytest.raises(InputError, match="field 'observation' holds nan in row 7"):
        save_packed(replace(logged, observation=broken), tmp_path / "packed")
    fields["rewards"][3] = np.inf
    write_hdf5(tmp_path / "data.hdf5", fields)
    with pytest.raises(InputError, match="field 'rewards' holds inf in row 3"):
        pack(tmp_path / "data.hdf5", tmp_path / "packed")
    assert [path.name for path in tmp_path.iterdir()] == ["data.hdf5"]


def test_a_folder_that_exists_is_left_alone(tmp_path, logged):
    save_packed(logged, tmp_path / "packed")
    with pytest.raises(InputError, match="packed: exists already; remove it"):
        save_packed(logged, tmp_path / "packed")
    assert load(tmp_path / "packed").count == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"log_prob": None}, "some parts have 'log_prob' and some do not"),
        (
            {"action": np.zeros((10, 2), np.float32)},
            r"field 'action' has type float32 and size \(2,\) in one part",
        ),
        ({"reward": np.zeros(10)}, "field 'reward' has type float64"),
    ],
)
def test_parts_that_differ_are_refused(tmp_path, logged, change, message):
    with pytest.raises(InputError, match=message):
        save_packed([logged, replace(logged, **change)], tmp_path / "packed")
    assert not list(tmp_path.iterdir())


def test_nothing_at_all_is_refused(tmp_path):
    with pytest.raises(InputError, match="there are no episodes to write"):
        save_packed([], tmp_path / "packed")


def tear(folder):
    whole = (folder / "observation.npy").read_bytes()
    (folder / "observation.npy").write_bytes(whole[:-8])


def of_another_version(folder):
    described = json.loads((folder / "episodes.json").read_text())
    (folder / "episodes.json").write_text(json.dumps({**described, "version": 2}))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (tear, "cannot be read as a packed folder"),
        (of_another_version, "does not describe packed episodes of version 1"),
        (lambda folder: (folder / "reward.npy").unlink(), "field 'reward' is missing"),
        (lambda folder: np.save(folder / "length.npy", np.array([3, 1, 4, 1])), "adds up to 9"),
        (lambda folder: np.save(folder / "reward.npy", np.zeros(9, np.float32)), "vlbm data pack"),
        (lambda folder: (folder / "episodes.json").write_text("{"), "cannot be read as a packed folder"),
    ],
)
def test_a_damaged_folder_is_refused(tmp_path, logged, damage, message):
    save_packed(logged, tmp_path / "packed")
    damage(tmp_path / "packed")
    with pytest.raises(InputError, match=message):
        load(tmp_path / "packed")


def test_files_to_be_filled_have_their_size_from_the_start(tmp_path):
    values = allocate_in(tmp_path)("reward", (1000,), np.float32)
    assert is_mapped(values)
    assert (tmp_path / "reward.npy").stat().st_blocks * 512 >= 4000


def test_many_parts_are_as_one(tmp_path, logged, assert_same):
    parts = [logged.select([index]) for index in range(4)] * 5
    back: Episodes = save_packed(parts, tmp_path / "packed")
    assert_same(back, concatenate(parts))
