"""vlbm benchmark run, as it is typed."""

from __future__ import annotations

import json
import threading

import pytest

from made_benchmarks import made_failure, made_row
from test_cli import run
from vlbm.cli.benchmark_run import describe_row, find_tasks
from vlbm.directories import claim_directory

CHEAP = ("--methods", "is,ff", "--set", "ff.steps=4", "ff.units=4", "ff.members=2", "ff.validate_every=2",
         "is.resamples=20")  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A small benchmark, with what it printed."""
    place = tmp_path_factory.mktemp("benchmark") / "results"
    assert run("benchmark", "run", "pendulum", *CHEAP, "--seeds", 1, "--out", place) == 0
    return place


def test_a_run_stores_rows_and_prints_a_line_for_each_and_the_means(finished, capsys):
    again = run("benchmark", "run", "pendulum", *CHEAP, "--seeds", 2, "--out", finished)
    assert again == 0
    shown = capsys.readouterr()
    lines = [line.split() for line in shown.err.splitlines() if "/4  pendulum" in line]
    assert [line[:5] for line in lines] == [
        ["3/4", "pendulum", "is", "seed", "1"],
        ["4/4", "pendulum", "ff", "seed", "1"],
    ]
    assert "not scored: answers for sampled actions" in shown.err
    assert "left" in " ".join(lines[0])
    assert "note: is: it answers for sampled actions" in shown.err
    assert "Means over all tasks of the embedded suite" in shown.out
    assert "4 of 4 done" in shown.out
    assert f"vlbm benchmark report {finished}" in shown.out.replace("\n", "")
    assert len(list((finished / "rows" / "pendulum").glob("*.json"))) == 4
    assert not (finished / "cells").exists()
    row = json.loads(next((finished / "rows" / "pendulum").glob("ff-*-1.json")).read_text())
    assert (row["suite"], row["environment"]) == ("embedded", "Pendulum-v1")
    assert row["settings"] == {"steps": 4, "units": [4], "members": 2, "validate_every": 2}


def test_a_dry_run_says_what_is_done_and_changes_nothing(finished, tmp_path, capsys):
    assert run("benchmark", "run", "pendulum", *CHEAP, "--seeds", 3, "--out", finished, "--dry-run") == 0
    shown = capsys.readouterr().out
    assert "6 cells: " in shown
    assert "to do" in shown
    assert "done" in shown
    assert run("benchmark", "run", "gym", *CHEAP, "--out", tmp_path / "new", "--dry-run") == 0
    assert "150 cells: 150 to do" in capsys.readouterr().out
    assert not (tmp_path / "new").exists()


def test_two_runs_in_one_directory_are_refused(tmp_path, capsys):
    locked, release = threading.Event(), threading.Event()

    def hold() -> None:
        with claim_directory(tmp_path / "results"):
            locked.set()
            release.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    locked.wait(60)
    try:
        assert run("benchmark", "run", "pendulum", *CHEAP, "--out", tmp_path / "results") == 2
    finally:
        release.set()
        thread.join()
    assert "is writing there" in capsys.readouterr().err


def test_where_every_cell_fails_the_exit_code_says_so(tmp_path, capsys):
    place = tmp_path / "results"
    code = run("benchmark", "run", "pendulum", "--methods", "ff", "--set", "ff.steps=3", "ff.units=4",
               "ff.learning_rate=1e30", "ff.clip=none", "--seeds", 1, "--out", place, "--quiet")  # fmt: skip
    assert code == 3
    shown = capsys.readouterr()
    assert "1 of them failed; --retry-failed runs these again" in shown.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["pendulums"], "unknown task 'pendulums'; did you mean pendulum"),
        (["pendulum", "--seeds", "0"], "--seeds 0: must be at least 1"),
        (["pendulum", "--workers", "0"], "--workers 0: must be at least 1"),
        (["pendulum", "--methods", "nonsense"], "unknown method 'nonsense'"),
        (["pendulum", "--methods", "is", "--set", "wis.clip=2"], "expected METHOD.KEY"),
        (["pendulum", "--methods", "is", "--preset", "paper"], "has no preset 'paper'"),
        (["pendulum", "--methods", "is", "--like-d4rl"], "only dope/ tasks have files"),
    ],
)
def test_what_cannot_be_run_is_said_in_one_line(arguments, words, tmp_path, capsys):
    assert run("benchmark", "run", *arguments, "--out", tmp_path / "results", "--quiet") == 2
    message = capsys.readouterr().err
    assert words in message
    assert message.count("\n") == 1


def test_tasks_are_meant_by_name_suite_or_pattern():
    kinds = ("random", "medium", "medium-replay", "medium-expert", "expert")
    assert find_tasks(["hopper-*"]) == [f"hopper-{kind}" for kind in kinds]
    assert len(find_tasks(["gym", "hopper-medium"])) == 25
    assert len(find_tasks(["dope"])) == 32
    assert find_tasks(["embedded"]) == ["pendulum"]


def test_a_line_says_how_right_a_cell_is_or_why_it_has_no_score():
    row = made_row("hopper-medium", rank=0.9, regret=0.1, error=1234.5)
    assert describe_row(row, "3/12", 600.0) == (
        "   3/12  hopper-medium  vlbm  seed 0  rank 0.90  regret 0.10  MAE 1234  63 s  about 10 min left"
    )
    failed = made_failure("hopper-medium", "fqe", 1, "no luck")
    assert describe_row(failed, "4/12", None) == "   4/12  hopper-medium  fqe  seed 1  failed: no luck"
