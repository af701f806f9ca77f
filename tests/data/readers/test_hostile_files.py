"""Files made to read elsewhere, to crash, to hang or to fill the memory are refused in one sentence."""

from __future__ import annotations

import json
import os
import zipfile
from dataclasses import replace

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hostile import LEAKS, guarded, hdf5, link_out, npy, refused, whole

from vlbm import limits
from vlbm.data.readers import is_data, load, pack, save_packed
from vlbm.errors import InputError
from vlbm.limits import MAX_BYTES_VARIABLE

__all__ = ["guarded"]

# Nothing outside is read.


def in_a_circle(file, name, secret):
    file[name] = h5py.SoftLink(f"/{name}")


@pytest.mark.parametrize("name", ["observations", "infos/action_log_probs"])
@pytest.mark.parametrize("leak", [*LEAKS, in_a_circle])
def test_hdf5_fields_that_lie_elsewhere_are_refused(leak, name, tmp_path, fields):
    secret = hdf5(tmp_path / "secret.hdf5", fields)
    del fields[name]
    hdf5(tmp_path / "data.hdf5", fields)
    with h5py.File(tmp_path / "data.hdf5", "a") as file:
        leak(file, name, secret)
    assert is_data(tmp_path / "data.hdf5")
    refused(tmp_path / "data.hdf5", f"field '{name}' .*(link to another file|lie in other files).*copy")


def test_hdf5_links_within_the_file_are_followed(tmp_path, fields, logged, assert_same):
    observations = fields.pop("observations")
    hdf5(tmp_path / "data.hdf5", fields | {"raw/states": observations})
    with h5py.File(tmp_path / "data.hdf5", "a") as file:
        file["alias"] = h5py.SoftLink("raw")
        file["observations"] = h5py.SoftLink("/alias/states")
    assert_same(load(tmp_path / "data.hdf5"), logged)


@pytest.mark.parametrize("name", ["observation.npy", "length.npy", "episodes.json"])
def test_a_packed_folder_does_not_lead_out_of_itself(name, tmp_path, logged):
    save_packed(logged, tmp_path / "packed")
    link_out(tmp_path / "packed" / name, tmp_path / "outside")
    refused(tmp_path / "packed", "leads out of the folder")


def test_a_packed_folder_behind_a_link_is_read(tmp_path, logged, assert_same):
    save_packed(logged, tmp_path / "packed")
    (tmp_path / "link").symlink_to("packed")
    assert_same(load(tmp_path / "link"), logged)


# Nothing is waited for.


def fifo(path):
    os.mkfifo(path)


def link_to_fifo(path):
    os.mkfifo(path.with_name("behind"))
    path.symlink_to(path.with_name("behind"))


@pytest.mark.parametrize("make", [fifo, link_to_fifo, lambda path: path.symlink_to("/dev/zero")])
@pytest.mark.parametrize("use", [load, is_data])
def test_what_is_no_file_is_refused_at_once(use, make, tmp_path):
    make(tmp_path / "data")
    with pytest.raises(InputError, match=r"data: is a (FIFO|device), not a file"):
        use(tmp_path / "data")


@pytest.mark.parametrize("name", ["observation.npy", "length.npy"])
def test_a_fifo_in_a_packed_folder_is_refused_at_once(name, tmp_path, logged):
    save_packed(logged, tmp_path / "packed")
    (tmp_path / "packed" / name).unlink()
    os.mkfifo(tmp_path / "packed" / name)
    refused(tmp_path / "packed", f"{name}: is a FIFO")


def test_a_table_of_200000_columns_fails_fast(tmp_path):
    names = ",".join(f"c{index}" for index in range(200_000))
    cells = ",".join(["0.5"] * 200_000)
    (tmp_path / "wide.csv").write_text(f"{names}\n{cells}\n")
    assert not is_data(tmp_path / "wide.csv")
    refused(tmp_path / "wide.csv", "has 200,000 columns, more than 16,384")


def test_blanks_do_not_keep_the_search_for_a_table_busy(tmp_path):
    (tmp_path / "blanks").write_text("a,b," + " " * 7900 + "!\n1,2,3\n")
    assert not is_data(tmp_path / "blanks")


# Nothing is believed.


def ours(logged):
    names = ("observation", "action", "reward", "length", "terminated")
    return {name: np.asarray(getattr(logged, name)) for name in names}


DECLARED = {
    "sizes whose product wraps around": npy((2**32, 2**32)),
    "a negative size": npy((-1, 2)),
    "more than it holds": npy((10**9, 2), data=bytes(80)),
    "objects": npy((10,), "|O", b"cos\nsystem\n(S'true'\ntR."),
    "records": npy((10,), [("a", "<f4")], bytes(40)),
    "no shape": npy((), "<f4", bytes(4)),
    "brackets": npy((), text="(" * 9000),
    "signs": npy((), text="-" * 9000 + "1"),
    "nothing": b"",
}


@pytest.mark.parametrize("declared", DECLARED)
@pytest.mark.parametrize("name", ["observation", "reward", "length", "terminated", "action"])
def test_arrays_that_declare_what_they_are_not_are_refused(name, declared, tmp_path, logged):
    members = {key: whole(values) for key, values in ours(logged).items()} | {name: DECLARED[declared]}
    with zipfile.ZipFile(tmp_path / "data.npz", "w") as archive:
        for key, content in members.items():
            archive.writestr(f"{key}.npy", content)
    refused(tmp_path / "data.npz", "field '")
    save_packed(logged, tmp_path / "packed")
    (tmp_path / "packed" / f"{name}.npy").write_bytes(DECLARED[declared])
    refused(tmp_path / "packed", "field '")


LENGTHS = {
    "adding up by wrapping around": np.array([2**63 - 1, 2**63 - 1, 6, 6]),
    "adding up in few bits": np.array([255, 255, 255, 13], np.uint8),
    "negative": np.array([-5, 5, 5, 5]),
    "without sign": np.array([2**64 - 5, 5, 5, 5], np.uint64),
    "not numbers": np.array([np.nan, 5, 3, 2]),
    "none": np.zeros(0, np.int64),
}


@pytest.mark.parametrize("kind", LENGTHS)
def test_lengths_that_do_not_add_up_are_refused(kind, tmp_path, logged):
    np.savez(tmp_path / "data.npz", **ours(logged) | {"length": LENGTHS[kind]})
    refused(tmp_path / "data.npz", "field '(length|observation|terminated)'")
    save_packed(logged, tmp_path / "packed")
    np.save(tmp_path / "packed/length.npy", LENGTHS[kind])
    refused(tmp_path / "packed", "field '(length|observation|terminated)'")


def test_lengths_in_few_bits_do_not_wrap_around_later(tmp_path):
    arrays = {
        "observation": np.zeros((256, 1), np.float32),
        "action": np.zeros((255, 1), np.float32),
        "reward": np.zeros(255, np.float32),
        "length": np.array([255], np.uint8),
        "terminated": np.array([True]),
    }
    np.savez(tmp_path / "data.npz", **arrays)
    assert (load(tmp_path / "data.npz").length + 1).tolist() == [256]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"observation": np.full((14, 2), np.nan, np.float32)}, "field 'observation' holds nan in row 0"),
        ({"reward": np.full(10, 1e300)}, "field 'reward' holds 1e\\+300 in row 0"),
        ({"action": np.arange(10)}, "field 'action' holds 5 in row 5"),
        ({"action": np.zeros(10)}, "field 'action' has type float64, but there are 5 discrete actions"),
        ({"terminated": np.array([0, 1, 2, 0])}, "field 'terminated' holds 2 in row 2"),
        ({"reward": np.array(["a"] * 10)}, "field 'reward' has type <U1"),
    ],
)
def test_packed_folders_are_checked_like_every_format(change, message, tmp_path, logged):
    save_packed(replace(logged, action=np.arange(10) % 5, n_actions=5), tmp_path / "packed")
    for name, values in change.items():
        np.save(tmp_path / "packed" / f"{name}.npy", values)
    refused(tmp_path / "packed", message)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_actions": "many"}, "n_actions of episodes.json' must be a whole number from 1; it is 'many'"),
        ({"n_actions": True}, "must be a whole number from 1"),
        ({"n_actions": 2**40}, "more than 10,000 actions"),
        ({"notes": 5}, "the notes of episodes.json are no list of texts"),
        ({"notes": [[]]}, "the notes of episodes.json are no list of texts"),
    ],
)
def test_the_description_of_a_packed_folder_is_checked(change, message, tmp_path, logged):
    save_packed(logged, tmp_path / "packed")
    described = json.loads((tmp_path / "packed/episodes.json").read_text())
    (tmp_path / "packed/episodes.json").write_text(json.dumps(described | change))
    refused(tmp_path / "packed", message)


def test_notes_and_counts_of_actions_in_npz_files_are_checked(tmp_path, logged):
    np.savez(tmp_path / "data.npz", **ours(logged), n_actions=np.array([2, 3]))
    refused(tmp_path / "data.npz", "field 'n_actions' must be a whole number")
    np.savez(tmp_path / "data.npz", **ours(logged), notes=np.array("one"))
    assert load(tmp_path / "data.npz").notes == ("one",)


def test_hdf5_rows_that_were_never_written_are_refused(tmp_path, fields):
    with h5py.File(tmp_path / "data.hdf5", "w") as file:
        for name, values in fields.items():
            shape, chunks = (300_000_000, *values.shape[1:]), (65_536, *values.shape[1:])
            file.create_dataset(name, shape, values.dtype, chunks=chunks)
    refused(
        tmp_path / "data.hdf5", f"what it declares would take .* GiB.*set {MAX_BYTES_VARIABLE} to at least"
    )
    with pytest.raises(InputError, match="what it declares would take"):
        pack(tmp_path / "data.hdf5", tmp_path / "packed")


def test_an_hdf5_chunk_larger_than_its_rows_counts_in_full(tmp_path, fields):
    with h5py.File(tmp_path / "data.hdf5", "w") as file:
        for name, values in fields.items():
            sizes = {"chunks": (500_000_000,), "maxshape": (None,)} if name == "rewards" else {}
            file.create_dataset(name, values.shape, values.dtype, **sizes)
    refused(tmp_path / "data.hdf5", "what it declares would take 1.9 GiB")


def test_names_of_fields_do_not_break_the_message(tmp_path, fields):
    del fields["rewards"]
    with zipfile.ZipFile(tmp_path / "data.npz", "w") as archive:
        for name in (*fields, "a\nb", *(f"x{index}" for index in range(100))):
            archive.writestr(f"{name}.npy", b"")
    refused(tmp_path / "data.npz", r"'rewards' is missing; the file has: .*'a\\nb', .*and \d+ more")
    with h5py.File(tmp_path / "data.hdf5", "w") as file:
        file[b"\xff\xfe"] = 1
    refused(tmp_path / "data.hdf5", "'observations' is missing")


def test_a_parquet_column_without_its_rows_is_refused(tmp_path, monkeypatch):
    table = pa.table({name: [[0.0]] * 3 for name in ("obs", "action")} | {"reward": [0.0] * 3})
    pa.parquet.write_table(table, tmp_path / "data.parquet")
    monkeypatch.setattr(pa.parquet.ParquetFile, "iter_batches", lambda *args, **kwargs: iter(()))
    refused(tmp_path / "data.parquet", "has 0 of 3 rows")


def test_a_zip_bomb_is_refused_before_it_is_unpacked(tmp_path, fields, monkeypatch):
    monkeypatch.setattr(limits, "HARMLESS_BYTES", 1 << 20)
    with zipfile.ZipFile(tmp_path / "data.npz", "w", zipfile.ZIP_BZIP2) as archive:
        for name, values in fields.items():
            if name == "observations":
                with archive.open("observations.npy", "w", force_zip64=True) as member:
                    member.write(npy((2_000_000, 2), data=bytes(16_000_000)))
            else:
                archive.writestr(f"{name}.npy", whole(values))
    refused(tmp_path / "data.npz", "its arrays, unpacked, would take 15.3 MiB in a file of")
    with pytest.raises(InputError, match="its arrays, unpacked, would take"):
        pack(tmp_path / "data.npz", tmp_path / "packed")


def write_runs(path):
    """Millions of equal values in a few bytes."""
    column = pa.array(np.zeros(500_000))
    table = pa.table({name: column for name in ("obs", "action", "reward")})
    with pa.parquet.ParquetWriter(path, table.schema, max_rows_per_page=500_000) as writer:
        for _ in range(8):
            writer.write_table(table, row_group_size=500_000)


def test_parquet_runs_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "HARMLESS_BYTES", 1 << 20)
    write_runs(tmp_path / "data.parquet")
    assert (tmp_path / "data.parquet").stat().st_size < 20_000
    refused(tmp_path / "data.parquet", "up to column '.*', would take .* MiB in a file of")


@pytest.mark.parametrize("kind", ["lists", "texts"])
def test_parquet_rows_that_are_long_all_alike_are_refused(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "HARMLESS_BYTES", 1 << 20)
    columns = {name: [0.5] * 2000 for name in ("obs", "action", "reward")}
    if kind == "lists":
        columns["obs"] = pa.FixedSizeListArray.from_arrays(np.zeros(2000 * 2000), 2000)
    else:
        columns["episode"] = ["x" * 20_000] * 2000
    pa.parquet.write_table(pa.table(columns), tmp_path / "data.parquet", max_rows_per_page=10**9)
    refused(tmp_path / "data.parquet", "would take .* MiB in a file of")


def test_the_limit_can_be_raised_and_lowered(monkeypatch, tmp_path, fields):
    np.savez(tmp_path / "data.npz", **fields)
    monkeypatch.setenv(MAX_BYTES_VARIABLE, "100")
    refused(tmp_path / "data.npz", "more than the 100 bytes allowed")
    monkeypatch.setenv(MAX_BYTES_VARIABLE, "1e6")
    assert load(tmp_path / "data.npz").steps == 10


@pytest.mark.parametrize("largest", [2**31 - 2, 2**31, 10_000])
def test_an_id_that_asks_for_too_many_actions_is_refused(largest, tmp_path, fields):
    fields["actions"] = np.arange(10)
    fields["actions"][3] = largest
    hdf5(tmp_path / "data.hdf5", fields)
    refused(
        tmp_path / "data.hdf5", f"ids up to {largest}, so more than 10,000 actions; number the actions from 0"
    )
    if largest == 10_000:
        assert load(tmp_path / "data.hdf5", n_actions=10_001).n_actions == 10_001


def test_many_actions_that_were_asked_for_can_be_packed(tmp_path, fields):
    fields["actions"] = np.arange(10) * 2000
    hdf5(tmp_path / "data.hdf5", fields)
    assert pack(tmp_path / "data.hdf5", tmp_path / "packed", n_actions=20_000).n_actions == 20_000
