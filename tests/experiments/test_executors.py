"""Cells side by side in processes, and on a cluster whose nodes die."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from made_cells import Known, made_plan, made_question, read_diary
from vlbm.errors import InputError
from vlbm.experiments.executors.base import Failure, Finished
from vlbm.experiments.executors.local import LocalExecutor, describe_death, take_next

QUESTION = made_question()


def outcomes(executor, cells):
    return {(cell.method, cell.seed): outcome for cell, outcome in executor.run(cells, lambda task: QUESTION)}


def test_processes_say_what_this_one_says_and_one_that_dies_costs_its_cell_alone(monkeypatch):
    monkeypatch.setenv("VLBM_CORES", "4")
    cells = made_plan(right=Known(), dying=Known(fault="death"), last=Known((3.0, 2.0, 1.0)))
    found = outcomes(LocalExecutor(2), cells)
    assert len(found) == 6
    for seed in (0, 1):
        assert isinstance(found["dying", seed], Failure)
        assert "killed by signal 9" in found["dying", seed].reason
    living = [cell for cell in cells if cell.method != "dying"]
    for name, alone in outcomes(LocalExecutor(), living).items():
        together = found[name]
        assert isinstance(together, Finished)
        assert together.estimates.values.tolist() == alone.estimates.values.tolist()
        # Each of two has half of the cores.
        assert together.estimates.settings["devices"] == 2


def test_a_worker_stays_with_its_task_and_seed_then_opens_another_then_helps():
    cells = made_plan(seeds=(0, 1, 2), a=Known(), b=Known())
    left = list(cells)
    taken = [take_next(left, None, set()), take_next(left, None, {("one", 0)})]
    assert [cell.seed for cell in taken] == [0, 1]
    assert take_next(left, ("one", 0), {("one", 1)}) is cells[1]
    assert take_next(left, ("one", 0), {("one", 1)}).seed == 2
    assert take_next(left, ("one", 0), {("one", 1), ("one", 2)}) is cells[5]
    assert take_next(left, ("one", 0), {("one", 1)}) is cells[3]
    assert left == []


ORPHAN = """
import sys
from made_cells import Known, made_plan, made_question
from vlbm.experiments.executors.local import LocalExecutor

if __name__ == "__main__":
    question = made_question()
    cells = made_plan(slow=Known(diary=sys.argv[1], seconds=60.0))
    list(LocalExecutor(2).run(cells, lambda task: question))
"""


def test_workers_end_with_the_process_that_waits_for_them(tmp_path):
    script, diary = tmp_path / "script.py", tmp_path / "diary"
    script.write_text(ORPHAN)
    places = os.pathsep.join([str(Path(__file__).resolve().parents[1]), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, script, diary], env={**os.environ, "PYTHONPATH": places, "MARK": str(diary)}
    )
    until = time.monotonic() + 60
    while len(read_diary(diary)) < 2:
        assert time.monotonic() < until
        time.sleep(0.1)
    assert count_processes(str(diary)) >= 3
    process.kill()
    process.wait()
    until = time.monotonic() + 10
    while count_processes(str(diary)) and time.monotonic() < until:
        time.sleep(0.1)
    assert count_processes(str(diary)) == 0


def count_processes(mark: str) -> int:
    """Processes with this in their environment, which children inherit."""
    found = 0
    for place in Path("/proc").glob("[0-9]*/environ"):
        try:
            found += f"MARK={mark}".encode() in place.read_bytes().split(b"\0")
        except OSError:
            continue
    return found


def test_how_a_process_died_is_said_in_words():
    assert describe_death(-9) == "its process was killed by signal 9 (perhaps for want of memory)"
    assert describe_death(3) == "its process ended with exit code 3"


def test_no_workers_are_too_few():
    with pytest.raises(InputError, match="workers 0: must be at least 1"):
        LocalExecutor(0)
