"""LocalExecutor: cells one after the other in this process, or side by side in processes of this machine."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from vlbm.cores import available_cores, use_cores
from vlbm.errors import InputError
from vlbm.estimators.shared_cache import SharedCache
from vlbm.experiments.executors.base import CACHE, Executor, Failure, Outcome, try_cell
from vlbm.experiments.plan import Cell, Question, Questions
from vlbm.progress import Progress, silent


class LocalExecutor(Executor):
    """On this machine; several workers are processes, each with its share of the cores."""

    def __init__(self, workers: int = 1):
        if workers < 1:
            raise InputError(f"workers {workers}: must be at least 1")
        self.workers = workers

    def run(
        self, cells: Iterable[Cell], questions: Questions, progress: Progress = silent
    ) -> Iterator[tuple[Cell, Outcome]]:
        if self.workers == 1:
            return compute_here(cells, questions, progress)
        return compute_in_processes(list(cells), questions, self.workers)


def compute_here(
    cells: Iterable[Cell], questions: Questions, progress: Progress
) -> Iterator[tuple[Cell, Outcome]]:
    """In this process; a cell is taken only when the one before it has been dealt with."""
    caches = Caches()
    for cell in cells:
        question = questions(cell.task)
        with progress.passing() as shown:
            outcome = try_cell(cell, question, cache=caches.of(cell), progress=shown)
        yield cell, outcome


class Caches:
    """What methods of one task and seed share, as long as cells are of that task."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, int], SharedCache] = {}

    def of(self, cell: Cell) -> SharedCache:
        self._found = {group: cache for group, cache in self._found.items() if group[0] == cell.task}
        return self._found.setdefault(cell.group, SharedCache(CACHE))


@dataclass
class Worker:
    """A process and what it is doing."""

    process: Any
    connection: Connection
    cell: Cell | None = None
    group: tuple[str, int] | None = None  # of the latest cell

    @classmethod
    def start(cls, cores: int) -> Worker:
        # A new interpreter: JAX does not survive a fork.
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=work, args=(theirs, cores), daemon=True)
        process.start()
        theirs.close()  # the only other end dies with the process, which ends our reading
        return cls(process, ours)

    def begin(self, cell: Cell, questions: Questions) -> None:
        """Send a cell, and its question unless that of the cell before is the same."""
        known = self.group is not None and self.group[0] == cell.task
        self.cell, self.group = cell, cell.group
        self.connection.send((cell, None if known else questions(cell.task)))

    def finish(self) -> tuple[Cell, Outcome]:
        """The cell and what came of it, once there is something to read."""
        assert self.cell is not None
        cell, self.cell = self.cell, None
        try:
            return cell, self.connection.recv()
        except (EOFError, ConnectionError):
            self.process.join()
            return cell, Failure(describe_death(self.process.exitcode))

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


def compute_in_processes(
    cells: list[Cell], questions: Questions, workers: int
) -> Iterator[tuple[Cell, Outcome]]:
    """Each process takes the next cell when it has finished one; one that dies costs its cell alone."""
    left, share = list(cells), max(available_cores() // workers, 1)
    pool = [Worker.start(share) for _ in range(min(workers, len(left)))]
    try:
        while left or any(worker.cell is not None for worker in pool):
            for place, worker in enumerate(pool):
                if worker.cell is None and left:
                    if worker.process.exitcode is not None:
                        worker.end()
                        worker = pool[place] = Worker.start(share)
                    others = {other.group for other in pool if other.cell is not None}
                    worker.begin(take_next(left, worker.group, others), questions)
            busy = {worker.connection: worker for worker in pool if worker.cell is not None}
            for connection in wait(list(busy)):
                yield busy[connection].finish()  # type: ignore[index]
    finally:
        for worker in pool:
            worker.end()


def take_next(left: list[Cell], group: tuple[str, int] | None, others: set[tuple[str, int] | None]) -> Cell:
    """Of the same task and seed as before if there is one, else of one that nobody is at, else the last.

    So what methods share is made once, unless there would be nothing else to do.
    """
    place = next((place for place, cell in enumerate(left) if cell.group == group), None)
    if place is None:
        place = next((place for place, cell in enumerate(left) if cell.group not in others), -1)
    return left.pop(place)


def work(connection: Connection, cores: int) -> None:
    """The life of a worker: cells come and outcomes go, until the other end is closed."""
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C reaches all processes; the first one ends the others
    threading.Thread(target=_end_with_parent, daemon=True).start()
    use_cores(cores)
    caches = Caches()
    question: Question | None = None
    while True:
        try:
            cell, given = connection.recv()
        except EOFError:
            return
        question = given or question
        assert question is not None
        connection.send(try_cell(cell, question, cache=caches.of(cell)))


def _end_with_parent() -> None:
    """A process that nobody waits for any longer must not go on writing."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def describe_death(code: int | None) -> str:
    if code is not None and code < 0:
        killed = f"was killed by signal {-code}"
        return f"its process {killed}" + (" (perhaps for want of memory)" if code == -signal.SIGKILL else "")
    return f"its process ended with exit code {code}"
