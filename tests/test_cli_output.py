"""Where the command line writes: standard output, directories that hold runs, unwritable files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from test_cli import TINY, folder, run

__all__ = ["folder"]  # a fixture

EVALUATE = ["evaluate", "logs.npz", "first.npz", "--set", *TINY, "--episodes", 3, "--horizon", 5, "--quiet"]
COMPARE = ["compare", "logs.npz", "first.npz", "second.npz", "--methods", "wpdis", "--set",
           "wpdis.clone_steps=5", "--no-backtest", "--quiet"]  # fmt: skip


@pytest.mark.parametrize(
    "command",
    [pytest.param(EVALUATE, marks=pytest.mark.slow), COMPARE],
    ids=["evaluate", "compare"],
)
def test_json_on_standard_output_is_all_there_is_on_it(folder, capfd, command):
    before = os.listdir()
    assert run(*command, "--json", "-") == 0
    printed = capfd.readouterr()
    assert json.loads(printed.out)["version"]
    assert "first" in printed.err
    assert os.listdir() == before


def test_a_page_on_standard_output_is_all_there_is_on_it(folder, capfd):
    assert run(*COMPARE, "--report", "-", "--save", "run", "--json", "out.json") == 0
    page = capfd.readouterr().out
    assert page.startswith("<!doctype html>")
    assert page.rstrip().endswith("</html>")
    assert run("report", "run", "--output", "-") == 0
    assert capfd.readouterr().out == page
    assert not Path("-").exists()


@pytest.mark.skipif(not os.path.exists("/dev/stdout"), reason="this system has no such name")
def test_the_device_of_standard_output_is_not_replaced(folder):
    code = "import sys; from vlbm.cli import main; main(sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, COMPARE), "--json", "/dev/stdout"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout)["policies"] == ["first", "second"]
    assert Path("/dev/stdout").is_symlink()


def test_two_files_do_not_go_to_standard_output(folder, capsys):
    assert run(*COMPARE, "--json", "-", "--report", "-") == 2
    assert "two files would be mixed in standard output" in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_said_before_anything_is_computed(folder, capsys):
    Path("file").touch()
    assert run(*COMPARE, "--json", "file/out.json") == 2
    assert "file/out.json: cannot be written" in capsys.readouterr().err


def test_a_run_is_not_overwritten_unasked(folder, capsys):
    assert run(*COMPARE, "--save", "run") == 0
    before = Path("run/wpdis-0.safetensors").read_bytes()
    for command in (COMPARE, EVALUATE, ["fit", "logs.npz", "--set", *TINY]):
        assert run(*command, "--save", "run") == 2
        assert "run: holds a run or a model already (wpdis-0-evidence.safetensors)" in capsys.readouterr().err
    assert Path("run/wpdis-0.safetensors").read_bytes() == before
    assert run(*COMPARE, "--save", "run", "--resume") == 0
    assert run(*COMPARE, "--seed", 1, "--save", "run", "--overwrite") == 0
    assert sorted(path.name for path in Path("run").iterdir() if path.is_file()) == [
        "wpdis-1-evidence.safetensors",
        "wpdis-1.safetensors",
    ]
    assert sorted(path.name for path in Path("run/evidence").iterdir() if "wpdis-" in path.name) == [
        "wpdis-1.safetensors"
    ]


def test_a_fitted_model_is_not_overwritten_unasked(folder, capsys):
    hasty = ["units=4", "members=2", "batch=8", "steps=4", "validate_every=2"]
    fit = ["fit", "logs.npz", "--method", "ff", "--set", *hasty, "--quiet", "--save", "model"]
    assert run(*fit) == 0
    assert run(*fit) == 2
    assert "model: holds a run or a model already" in capsys.readouterr().err
    assert run("evaluate", "first.npz", "--model", "model", "--save", "model", "--quiet") == 2
    assert "--save model: holds the model itself" in capsys.readouterr().err
    assert run(*fit, "--resume", "--overwrite") == 2
    assert "not both" in capsys.readouterr().err
    assert run(*fit, "--seed", 7, "--overwrite") == 0
    assert json.loads(Path("model/model.json").read_text())["seed"] == 7


@pytest.mark.parametrize("option", ["--resume", "--overwrite"])
def test_resuming_or_overwriting_needs_a_directory(folder, capsys, option):
    assert run(*EVALUATE, option) == 2
    assert f"{option} needs --save DIR" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["fit", "logs.npz", "--save", "-"], ["data", "pack", "logs.npz", "-"]])
def test_a_directory_is_not_standard_output(folder, capsys, command):
    before = os.listdir()
    assert run(*command) == 2
    assert "standard output" in capsys.readouterr().err
    assert os.listdir() == before


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_estimates_are_shown_though_the_disk_is_full(folder, capsys):
    quick = ["evaluate", "logs.npz", "first.npz", "--method", "wpdis", "--set", "clone_steps=5", "--quiet"]
    assert run(*quick, "--json", "/dev/full") == 2
    shown = capsys.readouterr()
    assert "behaviour (logged)" in shown.out
    last = shown.err.strip().splitlines()[-1]
    assert last.startswith("error: /dev/full: cannot be written (No space left on device)")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_standard_output_that_takes_nothing_is_one_error(folder):
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "vlbm", "inspect", "logs.npz"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert ended.returncode == 2
    assert "error: standard output, or a temporary file, cannot be written" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_full_disk_while_packing_is_not_blamed_on_the_source(folder, capsys):
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        assert run("data", "pack", "logs.npz", "packed") == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "error: packed: cannot be written (File too large)" in capsys.readouterr().err
    assert not Path("packed").exists()
