"""Readers are chosen by what is in a file."""

from __future__ import annotations

import subprocess
import sys
import zipfile

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from vlbm.data.readers import is_data, load, save_npz

CSV = "episode,obs_0,action,reward\n0,1.5,0,1\n0,2.5,1,1\n"


def write_hdf5(path, fields, logged):
    with h5py.File(path, "w") as file:
        for name, values in fields.items():
            file[name] = values


WRITERS = {
    "hdf5": write_hdf5,
    "flat npz": lambda path, fields, logged: np.savez(open(path, "wb"), **fields),  # noqa: SIM115
    "our npz": lambda path, fields, logged: save_npz(logged, path),
    "parquet": lambda path, fields, logged: pa.parquet.write_table(
        pa.table({"obs": [1.0, 2.0], "action": [0.5, 0.5], "reward": [1.0, 1.0]}), path
    ),
    "csv": lambda path, fields, logged: path.write_text(CSV),
}


@pytest.mark.parametrize("kind", WRITERS)
def test_contents_decide_whatever_the_name_says(kind, tmp_path, fields, logged):
    path = tmp_path / "episodes.log"
    WRITERS[kind](path, fields, logged)
    assert is_data(path)
    assert load(path).count >= 1
    assert load(str(path)).count >= 1


def write_zip(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", b"weights")


def write_weights(path):
    with h5py.File(path, "w") as file:
        file["dense/kernel"] = np.zeros((2, 2))


NOT_DATA = {
    "weights.npz": lambda path: np.savez(path, **{"fc0/weight": np.zeros((2, 2)), "fc0/bias": np.zeros(2)}),
    "weights.pt": write_zip,
    "weights.h5": write_weights,
    "weights.safetensors": lambda path: path.write_bytes(b"\x10\0\0\0\0\0\0\0{}"),
    "policy.py": lambda path: path.write_text("import numpy, os, sys\nx = 1, 2, 3\n"),
    "policy.json": lambda path: path.write_text('{"a": 1, "b": 2,\n"c": 3, "d": 4}\n'),
    "policy.pickle": lambda path: path.write_bytes(b"\x80\x04\x95\0\0\0"),
    "empty": lambda path: path.write_bytes(b""),
    "prose.txt": lambda path: path.write_text("one line\nanother line\n"),
    "directory": lambda path: path.mkdir(),
    "absent": lambda path: None,
}


@pytest.mark.parametrize("name", NOT_DATA)
def test_other_files_are_not_data(name, tmp_path):
    NOT_DATA[name](tmp_path / name)
    assert not is_data(tmp_path / name)


def test_a_minari_id_is_data():
    assert is_data("minari:pointmaze/umaze-v2")


def test_a_torn_hdf5_file_counts_as_data_so_that_load_can_explain(tmp_path, fields, logged):
    path = tmp_path / "data.hdf5"
    write_hdf5(path, fields, logged)
    path.write_bytes(path.read_bytes()[:1000])
    assert is_data(path)


def test_importing_the_room_imports_no_file_library():
    heavy = "{'h5py', 'pyarrow', 'minari'}"
    code = f"import sys, vlbm.data.readers, vlbm.data.inspect; print(sorted({heavy} & set(sys.modules)))"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[]"
