"""Several files as one log."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from vlbm.data.readers import is_data, load, pack, save_npz
from vlbm.errors import InputError

HEADER = "episode,obs.x,obs.y,action,reward,terminated\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three files, each with an episode 0 of its own."""
    for number in range(3):
        rows = "".join(f"0,{number},{step},{number},{10 * number + step},0\n" for step in range(2 + number))
        (tmp_path / f"log{number}.csv").write_text(HEADER + rows)
    return tmp_path


def test_a_pattern_stands_for_its_files_in_order(folder):
    episodes = load(f"{folder}/*.csv")
    assert episodes.length.tolist() == [2, 3, 4]
    assert episodes.reward.tolist() == [0, 1, 10, 11, 12, 20, 21, 22, 23]
    assert episodes.n_actions == 3
    assert episodes.observation_names == ("obs.x", "obs.y")
    assert is_data(f"{folder}/*.csv")
    assert load(f"{folder}/log[1].csv").count == 1


def test_a_list_is_read_in_its_own_order(folder):
    assert load([folder / "log2.csv", str(folder / "log0.csv")]).length.tolist() == [4, 2]
    assert load([folder / "log1.csv"]).count == 1


def test_episodes_of_one_id_in_two_files_are_two(folder):
    episodes = load([folder / "log0.csv", folder / "log1.csv"])
    assert episodes.count == 2
    assert episodes.final_observed.tolist() == [False, False]


def test_notes_that_differ_in_numbers_alone_are_said_once(folder):
    notes = load(f"{folder}/*.csv").notes
    assert len(notes) == 1
    (folder / "log3.csv").write_text(HEADER + "0,1,1,0,1,0\n1,1,1,0,1,0\n")
    (note,) = load(f"{folder}/*.csv").notes
    assert note.endswith("in one file, and alike in 3 more")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "episode,obs.y,obs.x,action,reward\n0,1,2,0,1\n",
            "observation names are obs.y, obs.x, but obs.x, obs.y",
        ),
        ("episode,obs,action,reward\n0,1,0,1\n", "observation size is 1, but 2 in"),
        ("episode,obs.x,obs.y,action,reward\n0,1,2,0.5,1\n", "discrete is False, but True in"),
    ],
)
def test_files_that_do_not_belong_together_are_refused(text, message, folder):
    (folder / "other.csv").write_text(text)
    with pytest.raises(InputError, match=rf"other\.csv: {message}") as caught:
        load(f"{folder}/*.csv")
    assert "the same columns in the same order" in str(caught.value)


def test_a_pattern_without_files_and_a_file_given_twice_are_refused(folder):
    with pytest.raises(InputError, match=r"no\*.csv: no file has a name like this"):
        load(f"{folder}/no*.csv")
    assert not is_data(f"{folder}/no*.csv")
    with pytest.raises(InputError, match=r"log0\.csv: is given twice"):
        load([f"{folder}/*.csv", f"{folder}/log0.csv"])
    with pytest.raises(InputError, match="no files were given"):
        load([])


def test_a_file_whose_name_looks_like_a_pattern_is_itself(folder):
    (folder / "log[0].csv").write_text((folder / "log2.csv").read_text())
    assert load(f"{folder}/log[0].csv").steps == 4


def test_log_probabilities_that_one_file_lacks_are_left_out_and_noted(folder, tmp_path):
    (folder / "with.csv").write_text("obs.x,obs.y,action,reward,log_prob\n1,2,1,3,-0.5\n")
    episodes = load([folder / "with.csv", folder / "log0.csv"])
    assert episodes.log_prob is None
    assert episodes.notes[-1] == f"log-probabilities are left out, because {folder / 'log0.csv'} has none"


def test_formats_may_be_mixed(folder, logged, tmp_path):
    save_npz(logged, tmp_path / "one.npz")
    save_npz(logged, tmp_path / "two.npz")
    assert load(f"{tmp_path}/*.npz").count == 8


def test_several_files_pack_to_what_loading_them_gives(folder):
    packed, loaded = pack(f"{folder}/*.csv", folder / "packed"), load(f"{folder}/*.csv")
    assert packed.fingerprint() == loaded.fingerprint()
    np.testing.assert_array_equal(packed.final_observed, loaded.final_observed)
    assert packed.mapped
