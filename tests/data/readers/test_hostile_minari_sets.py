"""Minari data sets made to read elsewhere, to run something, to crash or to fill the memory are refused."""

from __future__ import annotations

import json
import os
import shutil
import warnings

import h5py
import numpy as np
import pyarrow as pa
import pytest
from hostile import LEAKS, guarded, hdf5, link_out, refused

from vlbm.data.readers import load

__all__ = ["guarded"]


@pytest.fixture
def minari_set(tmp_path, monkeypatch):
    """The folder of a small data set; what is asked for is its format."""
    minari = pytest.importorskip("minari")
    from gymnasium import spaces
    from minari.data_collector import EpisodeBuffer

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))

    def make(data_format="hdf5", observation_space=None, observations=None):
        box = spaces.Box(-1, 1, (2,))
        buffers = [
            EpisodeBuffer(
                observations=np.zeros((4, 2), np.float32) if observations is None else observations,
                actions=np.zeros((3, 2), np.float32),
                rewards=[1.0, 2.0, 3.0],
                terminations=[False, False, True],
                truncations=[False] * 3,
                infos={},
            )
            for _ in range(2)
        ]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            minari.create_dataset_from_buffers(
                "hostile/set-v0",
                buffers,
                observation_space=observation_space or box,
                action_space=box,
                data_format=data_format,
            )
        return tmp_path / "hostile/set-v0/data"

    return make


def change_metadata(folder, **change):
    metadata = json.loads((folder / "metadata.json").read_text()) | change
    kept = {name: value for name, value in metadata.items() if value is not None}
    (folder / "metadata.json").write_text(json.dumps(kept))


@pytest.mark.parametrize("leak", LEAKS)
def test_minari_fields_that_lie_elsewhere_are_refused(leak, minari_set, tmp_path):
    secret = hdf5(tmp_path / "secret.hdf5", {"observations": np.zeros((4, 2), np.float32)})
    folder = minari_set()
    with h5py.File(folder / "main_data.hdf5", "a") as file:
        del file["episode_0/observations"]
        leak(file, "episode_0/observations", secret)
    refused(folder, "link to another file|lie in other files")


def test_a_minari_episode_in_another_file_is_refused(minari_set, tmp_path):
    folder = minari_set()
    shutil.copy(folder / "main_data.hdf5", tmp_path / "secret.hdf5")
    with h5py.File(folder / "main_data.hdf5", "a") as file:
        del file["episode_1"]
        file["episode_1"] = h5py.ExternalLink(str(tmp_path / "secret.hdf5"), "episode_1")
    refused(folder, "field 'episode_1' is a link to another file")


@pytest.mark.parametrize("name", ["main_data.hdf5", "metadata.json"])
def test_a_minari_folder_does_not_lead_out_of_itself(name, minari_set, tmp_path):
    folder = minari_set()
    link_out(folder / name, tmp_path / "outside")
    refused(folder, "leads out of the folder")


@pytest.mark.parametrize("data_format", ["parquet", "arrow"])
def test_minari_tables_do_not_lead_out_of_their_folder(data_format, minari_set, tmp_path):
    folder = minari_set(data_format)
    file = next((folder / "1").glob(f"*.{data_format}"))
    link_out(file, tmp_path / "outside")
    refused(folder, "leads out of the folder")
    file.unlink()
    link_out(folder / "0", tmp_path / "other")
    refused(folder, "leads out of the folder")


def test_a_fifo_in_a_minari_folder_is_refused_at_once(minari_set):
    folder = minari_set("parquet")
    os.mkfifo(folder / "0/part-1.parquet")
    refused(folder, "is a FIFO")


def test_the_environment_that_minari_metadata_name_is_not_built(minari_set, tmp_path, monkeypatch):
    from gymnasium.envs.registration import EnvSpec

    (tmp_path / "trap.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Trap: ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    folder = minari_set()
    spec = EnvSpec("Trap-v0", entry_point="trap:Trap").to_json()
    change_metadata(folder, env_spec=spec)
    assert load(folder).steps == 6
    change_metadata(folder, observation_space=None)
    refused(folder, "has no observation_space, and the environment that it names is not built")
    assert not (tmp_path / "ran").exists()


def space(**described):
    return json.dumps({"type": "Box", "dtype": "float32", "shape": [2], "low": -1, "high": 1} | described)


@pytest.mark.parametrize(
    "change",
    [
        {"observation_space": space(shape=[10**12])},
        {"observation_space": space(shape=[-1])},
        {"observation_space": space(shape=[2.5])},
        {"observation_space": space(dtype="O")},
        {"observation_space": space(dtype="S1000000000")},
        {"observation_space": space(type="Nothing")},
        {"observation_space": space(low=[[]])},
        {"observation_space": space(type="Discrete", n=10**30, start=0)},
        {"observation_space": space(type="MultiBinary", n=[10**6, 10**6])},
        {"observation_space": '{"type": "Tuple", "subspaces": [' * 40 + "]}" * 40},
        {"observation_space": 5},
        {"observation_space": "{"},
        {"observation_space": space(shape=[0], low=[], high=[])},
        {"observation_space": space(shape=[3])},
        {"action_space": space(type="Discrete", n=10**9, start=0)},
        {"action_space": space(shape=[0], low=[], high=[])},
        {"total_episodes": 10**15},
        {"total_episodes": -1},
        {"total_episodes": 1.5},
        {"total_episodes": "2"},
        {"total_episodes": None},
        {"total_episodes": 0},
        {"data_format": "../hdf5"},
        {"data_format": []},
        {"data_format": "arrow"},
        {"minari_version": "99"},
        {"minari_version": []},
    ],
    ids=lambda change: str(change)[:60],
)
def test_minari_metadata_are_checked(change, minari_set):
    folder = minari_set()
    change_metadata(folder, **change)
    refused(folder, "metadata.json|observation|action|read as a Minari data set|steps|folder of episode")


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("observations", np.zeros(4, np.float32)),
        ("observations", np.zeros((4, 3), np.float32)),
        ("observations", np.float32(1)),
        ("observations", np.array([b"a"] * 4)),
        ("observations", np.zeros(4, [("a", "<f4")])),
        ("actions", np.zeros((3, 5), np.float32)),
        ("rewards", np.zeros((3, 2))),
        ("rewards", np.array([b"a"] * 3)),
        ("rewards", 1.0),
        ("rewards", h5py.Empty("f")),
        ("terminations", np.array([0, 0, 2])),
        ("terminations", np.zeros(2, bool)),
        ("terminations", np.zeros(0, bool)),
        ("terminations", None),
    ],
)
def test_minari_episodes_are_checked(name, values, minari_set):
    folder = minari_set()
    with h5py.File(folder / "main_data.hdf5", "a") as file:
        del file[f"episode_1/{name}"]
        if values is not None:
            file[f"episode_1/{name}"] = values
    refused(folder, f"field '{name}|terminations")


def test_minari_rows_that_were_never_written_are_refused(minari_set):
    folder = minari_set()
    with h5py.File(folder / "main_data.hdf5", "a") as file:
        del file["episode_1/observations"]
        file["episode_1"].create_dataset("observations", (300_000_000, 2), np.float32, chunks=(65_536, 2))
    refused(folder, "its episodes would take .* GiB in a file of")


def test_minari_parts_other_than_those_of_the_space_are_refused(minari_set):
    from gymnasium import spaces

    both = spaces.Dict({"a": spaces.Box(-1, 1, (1,)), "b": spaces.Discrete(3)})
    folder = minari_set(
        observation_space=both, observations={"a": np.zeros((4, 1), np.float32), "b": np.array([0, 1, 2, 0])}
    )
    assert load(folder).observation.shape == (8, 4)
    with h5py.File(folder / "main_data.hdf5", "a") as file:
        file["episode_0/observations/b"][2] = 7
    refused(folder, "holds 7 in row 2")
    with h5py.File(folder / "main_data.hdf5", "a") as file:
        file.move("episode_0/observations/b", "episode_0/observations/c")
    refused(folder, "field 'b' of an episode is missing")


def test_a_compressed_arrow_file_does_not_say_its_size_and_is_refused(minari_set):
    folder = minari_set("arrow")
    file = next((folder / "0").glob("*.arrow"))
    with pa.ipc.open_file(file) as opened:
        table = opened.read_all()
    with pa.ipc.new_file(file, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    refused(folder, "is compressed and does not say how much")


@pytest.mark.parametrize("data_format", ["hdf5", "parquet"])
def test_an_image_of_another_size_than_its_space_is_refused_before_it_is_unpacked(data_format, minari_set):
    from gymnasium import spaces

    images = np.zeros((4, 32, 40), np.uint8)
    folder = minari_set(data_format, spaces.Box(0, 255, (32, 40), np.uint8), images)
    assert load(folder).observation.shape == (8, 1280)
    low, high = np.zeros((40, 32)).tolist(), np.full((40, 32), 255).tolist()
    change_metadata(folder, observation_space=space(dtype="uint8", shape=[40, 32], low=low, high=high))
    refused(folder, "an image has .* pixels where .* belong")
