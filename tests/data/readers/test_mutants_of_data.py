"""Mutants of files in every format of data load, or are refused with one InputError."""

from __future__ import annotations

import gzip
import json
import warnings
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from fuzzing import count, failures, fuzz
from vlbm.data.readers import is_data, load, save_npz, save_packed

CSV = """run,step,obs_0,obs_1,action,reward,terminated
a,0,0.5,1,0,1.5,0
a,1,0.25,2,1,0.5,1
b,0,-0.5,3,2,1e-3,0
b,1,0.75,4,0,-1,0
"""
RECORDS = "".join(
    json.dumps({"run": run, "obs": [0.5 * step, 1], "action": step % 2, "reward": 1.5, "done": step == 2})
    + "\n"
    for run in "ab"
    for step in range(3)
)


def use(path):
    """What everyone does with data; run in another process, for each mutant."""
    is_data(path)
    episodes = load(
        path, **({"episode": "run"} if path.name.startswith(("steps.csv", "steps.jsonl")) else {})
    )
    assert episodes.observation.shape[0] == episodes.steps + episodes.count
    assert np.isfinite(episodes.returns()).all()
    episodes.fingerprint()
    episodes.select([0]).pad()


def write_hdf5(path, fields, logged, **options):
    with h5py.File(path, "w") as file:
        for name, values in fields.items():
            file.create_dataset(name, data=values, **options)


def write_small_chunks(path, fields, logged):
    write_hdf5(path, fields, logged, chunks=True, compression="gzip", shuffle=True)


def write_parquet(path, fields, logged):
    lists = {"observation": list(fields["observations"]), "action": list(fields["actions"])}
    columns = {"reward": fields["rewards"], "terminated": fields["terminals"], "episode": list("aaabccccdd")}
    pa.parquet.write_table(pa.table(lists | columns), path)


def write_minari(path, fields, logged, data_format):
    minari = pytest.importorskip("minari")
    from gymnasium import spaces
    from minari.data_collector import EpisodeBuffer

    rng = np.random.default_rng(0)
    space = spaces.Dict({"a": spaces.Box(-1, 1, (2,)), "b": spaces.Discrete(3, start=1)})
    buffers = [
        EpisodeBuffer(
            observations={
                "a": rng.normal(size=(steps + 1, 2)).astype(np.float32),
                "b": rng.integers(1, 4, steps + 1),
            },
            actions=rng.integers(2, size=steps),
            rewards=list(rng.normal(size=steps)),
            terminations=list(np.arange(steps) == steps - 1),
            truncations=[False] * steps,
            infos={},
        )
        for steps in (3, 1)
    ]
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.setenv("MINARI_DATASETS_PATH", str(path.parent))
        warnings.simplefilter("ignore")  # Minari misses an author and an address.
        minari.create_dataset_from_buffers(
            f"{path.name}-v0",
            buffers,
            observation_space=space,
            action_space=spaces.Discrete(2),
            data_format=data_format,
        )
    (path.parent / f"{path.name}-v0/data").rename(path)


FORMATS = {
    "flat.npz": lambda path, fields, logged: np.savez(path, **fields),
    "ours.npz": lambda path, fields, logged: save_npz(logged, path),
    "packed": lambda path, fields, logged: save_packed(logged, path),
    "plain.hdf5": write_hdf5,
    "chunks.hdf5": write_small_chunks,
    "steps.parquet": write_parquet,
    "steps.csv": lambda path, fields, logged: path.write_text(CSV),
    "steps.csv.gz": lambda path, fields, logged: path.write_bytes(gzip.compress(CSV.encode(), mtime=0)),
    "steps.jsonl": lambda path, fields, logged: path.write_text(RECORDS),
    "minari-hdf5": lambda path, fields, logged: write_minari(path, fields, logged, "hdf5"),
    "minari-parquet": lambda path, fields, logged: write_minari(path, fields, logged, "parquet"),
    "minari-arrow": lambda path, fields, logged: write_minari(path, fields, logged, "arrow"),
}


def check_mutants(name: str, folder: Path, fields, logged, numbers: range):
    FORMATS[name](folder / name, fields, logged)
    outcomes = fuzz("data.readers.test_mutants_of_data:use", folder / name, numbers)
    print(name, count(outcomes))
    assert failures(outcomes) == []
    assert len(outcomes) == len(numbers)


@pytest.mark.parametrize("name", FORMATS)
def test_some_mutants_load_or_are_refused(name, tmp_path, fields, logged):
    check_mutants(name, tmp_path, fields, logged, range(40))


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_many_mutants_load_or_are_refused(name, tmp_path, fields, logged):
    check_mutants(name, tmp_path, fields, logged, range(40, 1040))
