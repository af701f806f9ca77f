"""Directories of runs: one process at a time, and nothing is overwritten unasked."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import safetensors.numpy

from vlbm.directories import claim_directory, wait_until_free
from vlbm.errors import InputError
from vlbm.storage import save_arrays, write_text


def run_in(place):
    save_arrays(place / "checkpoint_0.safetensors", {"a": np.zeros(2)}, information={})
    save_arrays(place / "evidence" / "vlbm-0.safetensors", {"a": np.zeros(2)}, information={})
    for name in ("model.json", "estimates.json", "evidence/run.json"):
        write_text(place / name, "{}")
    return place


def claim(place, **options):
    with claim_directory(place, **options):
        pass


def everything(place):
    return sorted(str(path.relative_to(place)) for path in place.rglob("*"))


def test_a_directory_with_a_run_is_refused_unless_resumed(tmp_path):
    run_in(tmp_path)
    before = everything(tmp_path)
    with pytest.raises(InputError, match=r"holds a run or a model already \(checkpoint_0.*resume=True"):
        claim(tmp_path)
    with claim_directory(tmp_path, resume=True):
        assert (tmp_path / "checkpoint_0.safetensors").is_file()
    assert everything(tmp_path) == before


def test_a_run_in_a_folder_of_the_directory_counts(tmp_path):
    save_arrays(tmp_path / "vlbm-0" / "checkpoint_0.safetensors", {"a": np.zeros(2)}, information={})
    with pytest.raises(InputError, match="holds a run"):
        claim(tmp_path)


def test_overwriting_removes_the_old_run_and_nothing_of_the_users(tmp_path):
    run_in(tmp_path)
    (tmp_path / "evidence" / "notes.txt").touch()
    for place in (tmp_path, tmp_path / "policies"):
        place.mkdir(exist_ok=True)
        safetensors.numpy.save_file({"a": np.zeros(2)}, place / "policy-0.safetensors", metadata={"b": "c"})
        (place / "broken.safetensors").write_bytes(b"no")
    os.mkfifo(tmp_path / "pipe.safetensors")
    claim(tmp_path, overwrite=True)
    assert everything(tmp_path) == [
        "broken.safetensors",
        "evidence",
        "evidence/notes.txt",
        "pipe.safetensors",
        "policies",
        "policies/broken.safetensors",
        "policies/policy-0.safetensors",
        "policy-0.safetensors",
    ]


def test_files_of_the_user_are_no_run(tmp_path):
    (tmp_path / "estimates.json").touch()
    safetensors.numpy.save_file({"a": np.zeros(2)}, tmp_path / "model.safetensors")
    claim(tmp_path, overwrite=True)
    assert everything(tmp_path) == ["estimates.json", "model.safetensors"]


def test_what_works_inside_a_claimed_directory_belongs_to_it(tmp_path):
    with claim_directory(tmp_path):
        run_in(tmp_path)
        with claim_directory(tmp_path), claim_directory(tmp_path / "vlbm-0"):
            pass
    with pytest.raises(InputError, match="holds a run"):
        claim(tmp_path)


def test_an_unused_directory_leaves_no_trace(tmp_path):
    with claim_directory(tmp_path / "run"):
        assert (tmp_path / "run").is_dir()
    assert everything(tmp_path) == []


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.touch(), "is a file; give another directory"),
        (lambda path: path.parent.joinpath("run").symlink_to("run"), "cannot be"),
    ],
)
def test_what_is_no_directory_is_refused(tmp_path, make, message):
    make(tmp_path / "run")
    with pytest.raises(InputError, match=message):
        claim(tmp_path / "run")


def test_standard_output_is_no_directory():
    with pytest.raises(InputError, match="standard output"):
        claim("-")


HOLDS = """
import sys
from vlbm.directories import claim_directory, wait_until_free
with claim_directory(sys.argv[1]):
    print("claimed", flush=True)
    sys.stdin.read()
"""


def test_two_processes_do_not_write_at_once_and_a_killed_one_keeps_nobody_out(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"claimed\n"
        for options in ({}, {"resume": True}, {"overwrite": True}):
            with pytest.raises(InputError, match=rf"another process \({process.pid}\) is writing there"):
                claim(tmp_path, **options)
        process.kill()
    with claim_directory(tmp_path):
        assert (tmp_path / ".vlbm-lock").read_text() == str(os.getpid())
    assert everything(tmp_path) == []


def test_what_killed_writes_left_is_swept_in_all_folders_of_the_run(tmp_path):
    for place in (tmp_path, tmp_path / "evidence"):
        place.mkdir(exist_ok=True)
        (place / ".run.json.a1b2c3d4.vlbm-unfinished.json").touch()
    claim(tmp_path)
    assert everything(tmp_path) == ["evidence"]


def test_a_directory_is_waited_for_until_nobody_holds_it_and_not_for_ever(tmp_path):
    wait_until_free(tmp_path / "missing", seconds=60)
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with claim_directory(tmp_path / "run"):
            held.set()
            release.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(60)
    began = time.monotonic()
    wait_until_free(tmp_path / "run", seconds=0.3)
    assert 0.3 <= time.monotonic() - began < 10
    threading.Timer(0.3, release.set).start()
    wait_until_free(tmp_path / "run", seconds=60)
    thread.join()
    assert time.monotonic() - began < 30
