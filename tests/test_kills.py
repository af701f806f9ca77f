"""Commands that write, killed at any moment: again or with --resume they give the undisturbed result."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from made_benchmarks import made_row, write_rows
from systems import linear_logs
from test_cli import TINY, weights
from vlbm.data.readers import save_npz
from vlbm.storage import read_information

KILLS = 6  # of every command, half of them at a moment and half in the middle of a write
FEW = ["--episodes", 3, "--horizon", 5, "--quiet"]
SMALL = ["wpdis.clone_steps=20", "ff.steps=4", "ff.validate_every=2", "ff.units=4", "ff.members=2"]
COMMANDS: dict[str, list[Any]] = {
    "fit": ["fit", "logs.npz", "--set", *TINY, "--quiet", "--save", "run"],
    "evaluate": ["evaluate", "logs.npz", "first.npz", "--set", *TINY, *FEW, "--save", "run"],
    "json and report": ["evaluate", "logs.npz", "first.npz", "--method", "wpdis", "--set", "clone_steps=20",
                        *FEW, "--json", "run/out.json", "--report", "run/page.html"],
    "compare": ["compare", "logs.npz", "first.npz", "second.npz", "--methods", "wpdis,ff", "--set", *SMALL,
                "--quiet", "--save", "run"],
    "data pack": ["data", "pack", "logs.npz", "run/packed"],
    "demo": ["demo", "--output", "run", "--quiet", "--set", *TINY],
    "data make": ["data", "make", "pendulum-random", "--steps", 400, "--output", "run/made.npz", "--quiet"],
    "benchmark report": ["benchmark", "report", "kept", "--output", "run", "--formats", "md,csv", "--quiet"],
    "benchmark run": ["benchmark", "run", "pendulum", "--methods", "is,ff", "--seeds", "2", "--set",
                      *SMALL[1:], "is.resamples=20", "--out", "run", "--quiet"],
    "report": ["report", "kept", "--output", "run/page.html"],
    "policy": [],
}  # fmt: skip
CIRCUMSTANCES = ("seconds", "command", "peak_memory")  # of a run, which its results do not depend on
RESUMED = ("fit", "evaluate", "compare", "demo")
# Imports are done once: each command is a fork of a process that has done them.
PRELOADED = ("test_kills", "vlbm.cli", "vlbm.estimators.registry", "vlbm.experiments.comparison",
             "vlbm.experiments.evidence.collect", "vlbm.estimators.importance",
             "vlbm.estimators.world_models.feedforward", "vlbm.report.page", "vlbm.report.saved")  # fmt: skip


def work(folder: Path, arguments: list[Any], renames: int | None) -> None:
    """Run a command in a process of its own, which kills itself before the given rename."""
    os.chdir(folder)
    for descriptor in (1, 2):
        os.dup2(os.open("output.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
    for name in ("replace", "rename"):
        _count_calls(name, renames)
    if " ".join(map(str, arguments[:2])) == "data make":
        os.environ["VLBM_CACHE"] = "run/cache"  # where it keeps what it makes
    if arguments:
        from vlbm.cli import main

        main([str(argument) for argument in arguments])
    else:
        from vlbm.policies import load_policy, save_policy

        policy: Any = load_policy("first.npz")
        for ending in ("npz", "safetensors"):
            save_policy(policy, f"run/policy.{ending}")


def _count_calls(name: str, renames: int | None) -> None:
    rename: Callable[..., None] = getattr(os, name)
    left = [renames]

    def counted(*arguments: Any, **options: Any) -> None:
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] = None if left[0] is None else left[0] - 1
        rename(*arguments, **options)

    setattr(os, name, counted)


def start(
    folder: Path, arguments: list[Any], *, seconds: float | None = None, renames: int | None = None
) -> int:
    """The exit code of a command; it is killed after some seconds."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    process = context.Process(target=work, args=(folder, arguments, renames))
    process.start()
    process.join(seconds)
    process.kill()
    process.join()
    assert process.exitcode is not None
    return process.exitcode


@pytest.fixture
def make_folder(tmp_path: Path) -> Callable[[str, str], Path]:
    def make(command: str, name: str) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        save_npz(linear_logs(), folder / "logs.npz")
        np.savez(folder / "first.npz", **weights(seed=1))
        np.savez(folder / "second.npz", **weights(seed=2))
        if command == "report":
            from pages import made_comparison
            from vlbm.report.saved import save_run

            save_run(made_comparison(), folder / "kept")
        if command == "benchmark report":
            write_rows(folder / "kept", [made_row(method=method) for method in ("vlbm", "fqe")])
        return folder

    return make


def read_everything(folder: Path) -> dict[str, Any]:
    """What every file says, but for how long it took and which command was typed."""
    place = folder / "run"
    files = sorted(path for path in (*place.rglob("*"), *folder.glob(".*")) if path.is_file())
    return {str(path.relative_to(folder)): _read(path) for path in files}


def _read(path: Path) -> Any:
    match path.suffix:
        case ".safetensors" if "policy" not in path.name:
            arrays = {name: array.tobytes() for name, array in load_file(path).items()}
            return _without_times(read_information(path)), arrays
        case ".json":
            return _without_times(json.loads(path.read_text()))
        case ".npz":
            with np.load(path) as archive:
                return {name: archive[name].tobytes() for name in archive.files}
        case ".html":
            return path.read_text().rstrip().endswith("</html>")
    return path.read_bytes()


def _without_times(tree: Any) -> Any:
    if isinstance(tree, dict):
        kept = {name: part for name, part in tree.items() if name not in CIRCUMSTANCES}
        return {name: _without_times(part) for name, part in kept.items()}
    return [_without_times(part) for part in tree] if isinstance(tree, list) else tree


def check_kill(
    folder: Path,
    command: str,
    expected: dict[str, Any],
    *,
    seconds: float | None = None,
    renames: int | None = None,
) -> bool:
    """Kill a command, start it again, and compare; whether it was killed before its end."""
    arguments = COMMANDS[command]
    killed = start(folder, arguments, seconds=seconds, renames=renames) != 0
    finished = read_everything(folder) == expected
    again = [*arguments, "--resume"] if command in RESUMED else arguments
    code = start(folder, again)
    # A packed folder is not overwritten: if it is there, it is whole.
    assert code == 0 or (command == "data pack" and finished), (folder / "output.txt").read_text()
    assert read_everything(folder) == expected
    return killed


def check_kills(make_folder: Callable[[str, str], Path], command: str, kills: int) -> None:
    whole = make_folder(command, "whole")
    assert start(whole, COMMANDS[command]) == 0, (whole / "output.txt").read_text()
    expected = read_everything(whole)
    assert expected
    assert not [name for name in expected if "unfinished" in name or "lock" in name]
    # The first run compiled what the others find in the cache.
    timed = make_folder(command, "timed")
    began = time.monotonic()
    assert start(timed, COMMANDS[command]) == 0
    longest = time.monotonic() - began
    chance = random.Random(command)
    before_end = 0
    for kill in range(kills):
        # The first comes before anything has its name, which is before the end of any command.
        options: dict[str, Any] = {"renames": chance.randrange(len(expected)) if kill else 0}
        if kill % 2:
            options = {"seconds": longest * chance.uniform(0.2, 1.0)}
        folder = make_folder(command, f"killed-{kill}")
        before_end += check_kill(folder, command, expected, **options)
    print(f"{command}: {kills} kills, {before_end} before the end, undisturbed {longest:.1f} s")
    assert before_end


@pytest.mark.parametrize("command", ["data pack", "policy"])
def test_a_killed_command_is_as_if_it_had_not_been(make_folder, command):
    check_kills(make_folder, command, 2)


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_commands_killed_often_are_as_if_they_had_not_been(make_folder, command):
    check_kills(make_folder, command, KILLS)
