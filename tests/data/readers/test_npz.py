"""NPZ files: flat arrays, and our own layout."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from vlbm.data.readers import load, save_npz
from vlbm.errors import InputError


def test_saved_episodes_come_back_exactly(tmp_path, logged, assert_same):
    original = replace(logged, notes=("a note", "another"))
    save_npz(original, tmp_path / "saved.npz")
    back = load(tmp_path / "saved.npz")
    assert_same(back, original)
    assert back.notes == original.notes


def test_double_precision_survives_saving(tmp_path, logged, assert_same):
    original = replace(logged, observation=logged.observation / np.float64(3), log_prob=None)
    save_npz(original, tmp_path / "saved.npz")
    assert_same(load(tmp_path / "saved.npz"), original)


def test_discrete_actions_survive_saving(tmp_path, logged, assert_same):
    original = replace(logged, action=np.arange(10) % 3, n_actions=5)
    save_npz(original, tmp_path / "saved.npz")
    assert_same(load(tmp_path / "saved.npz"), original)


def test_the_file_has_exactly_the_name_given(tmp_path, logged):
    save_npz(logged, tmp_path / "saved")
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]
    assert load(tmp_path / "saved").count == 4


def test_a_failed_save_leaves_the_old_file_and_no_rubbish(tmp_path, logged, monkeypatch):
    save_npz(logged, tmp_path / "saved.npz")
    before = (tmp_path / "saved.npz").read_bytes()

    def tear(file, **_):
        file.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez_compressed", tear)
    with pytest.raises(OSError, match="disk full"):
        save_npz(logged, tmp_path / "saved.npz")
    assert (tmp_path / "saved.npz").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["saved.npz"]


def test_flat_arrays_with_the_names_of_d4rl_give_the_same_episodes(tmp_path, logged, fields, assert_same):
    fields["log_probs"] = fields.pop("infos/action_log_probs")
    np.savez(tmp_path / "flat.npz", **fields)
    assert_same(load(tmp_path / "flat.npz"), logged)


def test_flat_arrays_without_next_observations_keep_every_step_and_say_so(tmp_path, fields):
    del fields["next_observations"]
    np.savez_compressed(tmp_path / "flat.npz", **fields)
    episodes = load(tmp_path / "flat.npz")
    assert episodes.length.tolist() == [3, 1, 4, 2]
    assert episodes.final_observed.tolist() == [True, True, False, False]
    assert len(episodes.notes) == 2


def test_flat_arrays_may_hold_propensities(tmp_path, fields):
    del fields["infos/action_log_probs"]
    np.savez(tmp_path / "flat.npz", **fields, propensities=np.full(10, 0.25))
    np.testing.assert_allclose(load(tmp_path / "flat.npz").log_prob, np.log(0.25), rtol=1e-6)


def test_unknown_outcomes_and_names_survive_saving(tmp_path, logged, assert_same):
    original = replace(
        logged,
        final_observed=np.array([True, True, False, True]),
        observation_names=("tilt", "speed"),
        action_names=("left", "middle", "right"),
    )
    save_npz(original, tmp_path / "saved.npz")
    back = load(tmp_path / "saved.npz")
    assert_same(back, original)
    assert (back.observation_names, back.action_names) == (original.observation_names, original.action_names)
    assert back.fingerprint() == original.fingerprint() != logged.fingerprint()


def test_names_that_are_not_one_for_each_number_are_refused(tmp_path, logged):
    np.savez(tmp_path / "saved.npz", **ours(logged), observation_names=np.array(["tilt"]))
    with pytest.raises(InputError, match="observation_names must be 2 texts"):
        load(tmp_path / "saved.npz")


def ours(episodes):
    return {
        name: getattr(episodes, name) for name in ("observation", "action", "reward", "length", "terminated")
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"length": np.array([3, 1, 4, 1])}, "field 'length' must hold .* adds up to 9"),
        ({"length": np.array([3, 1, 6, 0])}, "field 'length' must hold whole numbers from 1"),
        ({"terminated": np.array([True])}, r"field 'terminated' has shape \(1,\) where \(4\) belongs"),
        ({"observation": np.zeros((10, 2))}, r"'observation' has shape \(10, 2\) where \(14, size\) belongs"),
        ({"observation": np.zeros(14)}, r"'observation' has shape \(14,\) where \(14, size\) belongs"),
        ({"observation": np.full((14, 2), np.nan)}, "field 'observation' holds nan in row 0"),
        ({"reward": np.array(["a"] * 10)}, "field 'reward' has type <U1"),
        ({"n_actions": np.array(2)}, r"'action' has shape \(10, 3\) where \(10\) belongs"),
        ({"n_actions": np.array(2), "action": np.arange(10)}, "field 'action' holds 2 in row 2"),
        ({"reward": np.zeros(0)}, r"'observation' has shape \(14, 2\) where \(4, size\) belongs"),
    ],
)
def test_a_changed_file_of_ours_is_refused(change, message, tmp_path, logged):
    np.savez(tmp_path / "saved.npz", **(ours(logged) | change))
    with pytest.raises(InputError, match=message):
        load(tmp_path / "saved.npz")


def test_a_missing_field_of_ours_is_named(tmp_path, logged):
    arrays = ours(logged)
    del arrays["reward"]
    np.savez(tmp_path / "saved.npz", **arrays)
    with pytest.raises(
        InputError, match="field 'reward' is missing; the file has: action, length, observation"
    ):
        load(tmp_path / "saved.npz")
