"""What cannot be read says why, in one sentence that names the file."""

from __future__ import annotations

import gzip
import zipfile

import h5py
import numpy as np
import pytest

from vlbm.data.readers import load
from vlbm.errors import InputError


def hdf5(path, fields):
    with h5py.File(path, "w") as file:
        for name, values in fields.items():
            file[name] = values


def flat(path, fields):
    np.savez(path, **fields)


def torn(writer, keep):
    def write(path, fields):
        writer(path, fields)
        path.write_bytes(path.read_bytes()[: int(path.stat().st_size * keep)])

    return write


def damaged(path, fields):
    """A compressed HDF5 file whose chunks are overwritten."""
    with h5py.File(path, "w") as file:
        for name, values in fields.items():
            data = file.create_dataset(name, data=values, compression="gzip")
            if name == "observations":
                place = data.id.get_chunk_info(0)
    content = bytearray(path.read_bytes())
    content[place.byte_offset : place.byte_offset + place.size] = bytes(place.size)
    path.write_bytes(content)


def without(*names):
    return lambda fields: {name: values for name, values in fields.items() if name not in names}


def changed(name, value):
    return lambda fields: fields | {name: value(fields[name].copy())}


def put(row, value):
    def change(values):
        values[row] = value
        return values

    return change


def objects(values):
    return np.array([*values[:-1], "x"], dtype=object)


FIELD_CASES = [
    (without("rewards"), "field 'rewards' is missing; the file has: actions, .*observations"),
    (without("terminals", "timeouts"), "field 'terminals' is missing"),
    (without("observations"), "field 'observations' is missing"),
    (changed("observations", put((7, 1), np.nan)), "field 'observations' holds nan in row 7"),
    (changed("actions", put((2, 0), np.inf)), "field 'actions' holds inf in row 2"),
    (changed("rewards", put(4, -np.inf)), "field 'rewards' holds -inf in row 4"),
    (changed("next_observations", put((9, 0), np.nan)), "field 'next_observations' holds nan in row 9"),
    (changed("rewards", lambda values: values[:8]), "field 'observations' has 10 rows, but 'rewards' has 8"),
    (changed("actions", lambda values: values[:9]), "field 'actions' has 9 rows, but 'rewards' has 10"),
    (changed("rewards", lambda values: values[:, None].repeat(2, 1)), r"'rewards' has shape \(10, 2\)"),
    (changed("rewards", lambda values: values[0]), r"field 'rewards' has shape \(\)"),
    (
        changed("observations", lambda values: values.reshape(10, 1, 2)),
        r"'observations' has shape \(10, 1, 2\)",
    ),
    (
        changed("next_observations", lambda values: values[:, :1]),
        "'next_observations' has 1 numbers in each row",
    ),
    (changed("terminals", lambda values: values * 3), "field 'terminals' holds 3 in row 2 .*must be 0 or 1"),
    (changed("timeouts", lambda values: values + 0.5), "field 'timeouts' holds 0.5 in row 0"),
    (changed("rewards", lambda values: values.astype("S8")), r"field 'rewards' has type \|S8"),
    (changed("actions", lambda values: np.arange(-1, 9)), "field 'actions' holds -1 in row 0"),
    (lambda fields: {name: values[:0] for name, values in fields.items()}, "has no steps"),
]


@pytest.mark.parametrize("writer", [hdf5, flat])
@pytest.mark.parametrize(("change", "message"), FIELD_CASES, ids=[message for _, message in FIELD_CASES])
def test_a_wrong_field_is_named_with_its_place(writer, change, message, tmp_path, fields):
    path = tmp_path / "data.npz"
    writer(path, change(fields))
    with pytest.raises(InputError, match=message) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def text(content):
    return lambda path, _: path.write_bytes(content)


def other_zip(path, _):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model/data.pkl", b"weights")


FILE_CASES = [
    ("data.hdf5", text(b""), "is empty; fetch or write it again"),
    ("data.csv", text(b""), "is empty"),
    ("data.hdf5", text(b"<html>Not found</html>"), "is named .hdf5 but holds text"),
    ("data.h5", text(b"version https://git-lfs.github.com/spec/v1\n"), "holds a Git LFS pointer"),
    ("data.npz", text("größer".encode()), "is named .npz but holds text"),
    ("data.parquet", text(b"obs,action,reward\n1,2,3\n"), "is named .parquet but holds text"),
    ("data.bin", text(b"\x00\x01\x02\xff" * 100), "is in no known format; readable are HDF5"),
    ("data.csv.gz", text(gzip.compress(b"\0\1\2")), "is compressed with gzip and damaged, or holds no text"),
    ("data.npy", lambda path, _: np.save(path, np.zeros(3)), "is a single NumPy array without a name"),
    ("data.pt", other_zip, "is a zip archive without NumPy arrays"),
    ("data.hdf5", torn(hdf5, 0.5), "cannot be read as HDF5 .*truncated.*fetch or write it again"),
    ("data.hdf5", torn(hdf5, 0.01), "cannot be read as HDF5"),
    ("data.hdf5", damaged, "cannot be read as HDF5 .*fetch or write it again"),
    ("data.npz", torn(flat, 0.5), "cannot be read as NPZ .*fetch or write it again"),
    (
        "data.npz",
        lambda path, _: np.savez(path, a=np.zeros(3)),
        "field 'observations' is missing; the file has: a",
    ),
    (
        "data.npz",
        lambda path, fields: flat(path, fields | {"rewards": objects(fields["rewards"])}),
        "field 'rewards' holds Python objects",
    ),
    ("data.hdf5", lambda path, _: hdf5(path, {}), "field 'observations' is missing; the file has: no fields"),
    (
        "data.hdf5",
        lambda path, fields: hdf5(path, fields | {"rewards": h5py.Empty("f")}),
        "field 'rewards' is empty",
    ),
    (
        "data.hdf5",
        lambda path, _: hdf5(path, {"episode_0/observations": np.zeros(3)}),
        "is one part of a Minari data set; give the data set's directory",
    ),
    (
        "data.hdf5",
        lambda path, fields: hdf5(
            path, without("observations")(fields) | {"observations/image": np.zeros(10)}
        ),
        "field 'observations' is missing; .* next_observations, observations/, rewards, terminals, timeouts",
    ),
    ("data.txt", text(b"just some prose\n"), "no column looks like the observation"),
    ("data.txt", text(b"0.5,1,2\n0.25,0,1\n"), "the columns are: 0.5, 1, 2"),
]


@pytest.mark.parametrize(("name", "write", "message"), FILE_CASES, ids=[f"{c[0]} {c[2]}" for c in FILE_CASES])
def test_a_wrong_file_says_what_it_is_and_what_to_do(name, write, message, tmp_path, fields):
    path = tmp_path / name
    write(path, fields)
    with pytest.raises(InputError, match=message) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_said_so(tmp_path):
    with pytest.raises(InputError, match="there is no such file"):
        load(tmp_path / "absent.hdf5")


def test_a_plain_directory_is_said_so(tmp_path):
    with pytest.raises(InputError, match="is a directory without Minari's"):
        load(tmp_path)


def test_names_of_columns_are_refused_where_there_is_no_table(tmp_path, fields):
    hdf5(tmp_path / "data.hdf5", fields)
    with pytest.raises(InputError, match="reward= names columns of a table, but this is no table"):
        load(tmp_path / "data.hdf5", reward="score")


def test_a_file_that_needs_more_memory_than_there_is_says_so(tmp_path, fields, monkeypatch):
    def run_out(*_, **__):
        raise MemoryError

    flat(tmp_path / "data.npz", fields)
    monkeypatch.setattr(np.lib.format, "read_array", run_out)
    with pytest.raises(InputError, match="asks for more memory than there is"):
        load(tmp_path / "data.npz")


def test_a_number_of_actions_that_nothing_could_be_kept_for_is_refused(tmp_path):
    (tmp_path / "steps.csv").write_text("observation,action,reward,episode\n0.5,0,1,0\n0.25,1,1,0\n")
    assert load(tmp_path / "steps.csv", n_actions=1_000_000).action_size == 1_000_000
    with pytest.raises(InputError, match="n_actions=1000001 is more than 1,000,000"):
        load(tmp_path / "steps.csv", n_actions=1_000_001)


def test_an_empty_name_is_no_folder():
    with pytest.raises(InputError, match="no file has an empty name"):
        load("")
