"""A benchmark that is killed at any moment goes on where it was: the same table, and no cell twice."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
from pathlib import Path

from made_cells import Known, known_tasks, made_plan, made_question, read_diary
from vlbm.experiments.executors.local import LocalExecutor
from vlbm.experiments.row_store import RowStore
from vlbm.experiments.rows import read_rows
from vlbm.experiments.run import run_cells

KILLS = 12
CELLS = 12  # two tasks, two methods, three seeds


def work(folder: Path, renames: int | None) -> None:
    """Run the benchmark, and die before the given rename, which makes a file whole."""
    os.chdir(folder)
    left, replace = [renames], os.replace

    def counted(*arguments, **options):
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] = None if left[0] is None else left[0] - 1
        replace(*arguments, **options)

    os.replace = counted
    tasks = ("one", "two")
    cells = made_plan(tasks, (0, 1, 2), right=Known(diary="diary"), off=Known((4.0, 1.0, 0.0), diary="diary"))
    question = made_question()
    store = RowStore(Path("run"), known_tasks(tasks, question))
    assert len(list(run_cells(cells, lambda task: question, store, LocalExecutor()))) == CELLS


def start(folder: Path, renames: int | None) -> int | None:
    folder.mkdir(exist_ok=True)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["made_cells", "vlbm.experiments.row_store"])
    process = context.Process(target=work, args=(folder, renames))
    process.start()
    process.join()
    return process.exitcode


def count_rows(folder: Path) -> int:
    """Without what was not finished, whose names are hidden."""
    return sum(path.name[0] != "." for path in (folder / "run").rglob("*.json"))


def table(folder: Path) -> list[tuple]:
    return [(row.task, row.method, row.seed, row.policies, row.scores) for row in read_rows(folder / "run")]


def test_a_killed_benchmark_gives_the_same_table_and_runs_no_cell_twice(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert start(whole, None) == 0
    chance, before = random.Random(0), 0
    for _ in range(KILLS):
        rows = count_rows(killed)
        code = start(killed, chance.randrange(3))
        fits = len(read_diary(killed / "diary"))
        # Every start fits what has no row yet; the last of these fits may be lost.
        done = count_rows(killed)
        assert fits - before == done - rows + (code != 0)
        before = fits
        if code == 0:
            break
    assert start(killed, None) == 0
    assert table(killed) == table(whole)
    assert len(read_diary(killed / "diary")) - before == CELLS - done
