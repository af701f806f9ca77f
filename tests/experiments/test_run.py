"""The engine of benchmarks: a row for every cell, none twice, and failures that stop nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from made_cells import LOGS, Known, known_tasks, made_plan, made_question, read_diary
from vlbm.errors import InputError
from vlbm.experiments import row_store
from vlbm.experiments.executors.base import Executor
from vlbm.experiments.executors.local import LocalExecutor
from vlbm.experiments.plan import Cell, find_changes
from vlbm.experiments.row_store import RowStore
from vlbm.experiments.rows import Row, read_rows
from vlbm.experiments.run import run_cells
from vlbm.experiments.time_left import TimeLeft, describe_seconds
from vlbm.nn.training import History
from vlbm.version import VERSION

HERE = LocalExecutor()


def run(
    directory: Path,
    cells: list[Cell],
    executor: Executor = HERE,
    *,
    question=None,
    retry_failed: bool = False,
) -> list[Row]:
    question = question or made_question()
    tasks = known_tasks([cell.task for cell in cells], question)
    store = RowStore(directory, tasks, retry_failed=retry_failed)
    return [row for _, row in run_cells(cells, lambda task: question, store, executor)]


def test_a_row_says_what_was_computed_and_from_what(tmp_path):
    cells = made_plan(right=Known(), off=Known((4.0, 1.0, 0.0)))
    found = run(tmp_path, cells)
    assert sorted(found, key=str) == sorted(read_rows(tmp_path), key=str)
    assert [(row.task, row.method, row.seed) for row in found] == [
        ("one", "right", 0),
        ("one", "off", 0),
        ("one", "right", 1),
        ("one", "off", 1),
    ]
    row = found[3]
    assert (row.version, row.preset, row.failed) == (VERSION, "default", None)
    assert row.settings == {"values": [4.0, 1.0, 0.0]}
    assert row.data == {"checksum": LOGS.fingerprint(), "episodes": LOGS.count, "steps": LOGS.steps}
    assert row.seconds["evaluate"] == 2.0
    assert row.peak_memory > 10_000_000
    assert row.policies["poor"].value == 5.0
    assert row.scores["rank_correlation"] == -1.0
    assert row.scores["regret"] == 1.0


def test_a_finished_cell_is_not_run_again_and_others_can_be_added(tmp_path):
    diary = tmp_path / "diary"
    known = Known(diary=str(diary))
    first = run(tmp_path, made_plan(seeds=(0, 1), right=known))
    assert read_diary(diary) == ["fit 0", "fit 1"]
    again = run(tmp_path, made_plan(seeds=(0, 1, 2), right=known))
    assert read_diary(diary) == ["fit 0", "fit 1", "fit 2"]
    assert again[:2] == first
    # Other settings are another cell.
    run(tmp_path, made_plan(seeds=(0,), right=replace(known, values=(1.0, 2.0, 3.0))))
    assert read_diary(diary)[3:] == ["fit 0"]
    assert len(read_rows(tmp_path)) == 4


@pytest.mark.parametrize(
    "what", ["other data", "another estimand", "another version of vlbm", "other policies"]
)
def test_a_row_made_from_something_else_is_one_clear_error(what, tmp_path, monkeypatch):
    cells = made_plan(seeds=(0,), right=Known())
    question = made_question()
    run(tmp_path, cells)
    match what:
        case "other data":
            question = made_question(logs=LOGS.select(range(3)))
        case "another estimand":
            question = made_question(discount=0.5)
        case "another version of vlbm":
            monkeypatch.setattr(row_store, "VERSION", "99.0")
        case "other policies":
            monkeypatch.setitem(known_tasks.__globals__, "TRUTH", {"poor": 1.0})
    with pytest.raises(InputError, match=rf"one/right-.*-0\.json: was made with {what};"):
        run(tmp_path, cells, question=question)


def test_a_cell_that_fails_is_recorded_and_tried_again_only_when_asked(tmp_path):
    diary = tmp_path / "diary"
    broken = Known(fault="input", diary=str(diary))
    cells = made_plan(seeds=(0,), bad=broken, right=Known())
    bad, right = run(tmp_path, cells)
    assert (bad.failed, bad.policies, bad.scores) == ("broken on purpose", {}, None)
    assert right.failed is None
    run(tmp_path, cells)
    assert read_diary(diary) == ["fit 0"]
    # The fault is no setting, so that it is the same cell.
    mended = [replace(cell, estimator=replace(cell.estimator, fault="")) for cell in cells]
    found = {row.method: row.failed for row in run(tmp_path, mended, retry_failed=True)}
    assert found == {"bad": None, "right": None}
    assert read_diary(diary) == ["fit 0", "fit 0"]


def test_an_error_that_nobody_foresaw_fails_its_cell_alone_and_is_kept_for_us(tmp_path):
    rows = run(tmp_path, made_plan(seeds=(0,), bad=Known(fault="bug"), right=Known()))
    assert [row.failed for row in rows] == ["ZeroDivisionError: nobody thought of this", None]
    (trace,) = (tmp_path / "errors").rglob("bad-*.txt")
    assert "made_cells.py" in trace.read_text()


def test_what_a_method_cannot_answer_is_known_before_it_is_fitted(tmp_path):
    diary = tmp_path / "diary"
    (row,) = run(tmp_path, made_plan(seeds=(0,), bad=Known(fault="unable", diary=str(diary))))
    assert row.failed == "cannot answer that"
    assert read_diary(diary) == []


def test_values_that_are_no_numbers_are_a_failure(tmp_path):
    (row,) = run(tmp_path, made_plan(seeds=(0,), wild=Known(fault="overflow")))
    assert row.failed == "the value of good is not a finite number"
    assert read_rows(tmp_path) == [row]


def test_an_interrupted_cell_leaves_its_checkpoints_and_a_finished_one_none(tmp_path):
    seen: list[tuple[Path, bool]] = []

    class Spy(LocalExecutor):
        def run(self, cells, questions, progress=None):
            for cell in cells:
                seen.append((cell.directory, cell.resume))
                cell.directory.mkdir(exist_ok=True)
                (cell.directory / "checkpoint_0.safetensors").write_text("half a model")
                yield from super().run([cell], questions)

    cells = made_plan(seeds=(0, 1), right=Known(fault="interrupted"))
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, cells, Spy())
    ((place, resumed),) = seen
    assert resumed
    assert (place / "checkpoint_0.safetensors").is_file()
    whole = [replace(cell, estimator=Known()) for cell in cells]
    run(tmp_path, whole, Spy())
    assert seen[1][0] == place
    assert list((tmp_path / "cells").iterdir()) == []


def test_methods_of_a_task_and_seed_share_what_they_have_in_common(tmp_path):
    diary = tmp_path / "diary"
    asking = Known(shared=True, diary=str(diary))
    run(tmp_path, made_plan(first=asking, second=asking))
    lines = read_diary(diary)
    assert sorted(line for line in lines if "shared" in line) == ["shared 0", "shared 1"]
    assert len(lines) == 6


def test_what_differs_from_the_preset_is_named_as_json_keeps_it():
    assert find_changes(Known((1.0, 2.0)), Known()) == {"values": [1.0, 2.0]}
    assert find_changes(Known(), Known()) == {}


def test_time_left_is_judged_by_cells_of_the_same_method(tmp_path):
    cells = made_plan(tasks=("one", "two"), seeds=(0,), slow=Known(), quick=Known())
    rows = {(row.task, row.method): row for row in run(tmp_path, cells)}

    def lasting(task: str, method: str, seconds: float) -> Row:
        return replace(rows[task, method], seconds={"fit": seconds, "evaluate": 0.0})

    left = TimeLeft(cells)
    assert left.seconds is None
    left.finish(lasting("one", "slow", 100.0))
    assert left.seconds == 300.0  # nothing else is known yet
    left.finish(lasting("one", "quick", 10.0))
    assert left.seconds == 110.0
    left.finish(replace(rows["two", "slow"], failed="at once", seconds={"fit": float("nan")}))
    assert left.seconds == 10.0
    assert TimeLeft([], at_once=3).seconds is None
    assert [describe_seconds(seconds) for seconds in (41, 720, 12600)] == ["41 s", "12 min", "3.5 h"]


@dataclass(frozen=True)
class Trained(Known):
    """One that remembers its training, as world models do."""

    interrupted: bool = False

    @property
    def histories(self) -> tuple[History, ...]:
        return (History(seconds=50.0, best_score=0.5, interrupted=self.interrupted),)


def test_a_resumed_training_took_as_long_as_all_of_its_parts(tmp_path):
    (row,) = run(tmp_path, made_plan(seeds=(0,), trained=Trained()))
    assert row.seconds["fit"] == 50.0


def test_a_training_that_ctrl_c_ended_is_no_result(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, made_plan(seeds=(0,), trained=Trained(interrupted=True)))
    assert not (tmp_path / "rows").exists()
