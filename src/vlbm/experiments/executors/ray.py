"""RayExecutor: cells as tasks of a Ray cluster, data and policies in its object store."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any

from vlbm.cores import use_cores
from vlbm.errors import InputError, first_line, require
from vlbm.experiments.executors.base import Executor, Failure, Outcome, try_cell
from vlbm.experiments.plan import Cell, Questions
from vlbm.progress import Progress, silent

RETRIES = 3  # how often a cell is begun again when its node or process dies


class RayExecutor(Executor):
    """On the cluster at RAY_ADDRESS, else on one that is started on this machine.

    By default as many cells at once as nodes have room for, each with all cores of the smallest node; or
    `workers` of them, with equal shares of all cores.
    """

    def __init__(self, workers: int | None = None):
        if workers is not None and workers < 1:
            raise InputError(f"workers {workers}: must be at least 1")
        self.workers = workers
        self.ray: Any = require("ray", extra="ray", purpose="--executor ray")

    def run(
        self, cells: Iterable[Cell], questions: Questions, progress: Progress = silent
    ) -> Iterator[tuple[Cell, Outcome]]:
        mine = not self.ray.is_initialized()
        if mine:
            self._connect()
        try:
            yield from self._run(list(cells), questions)
        finally:
            if mine:
                self.ray.shutdown()

    def _connect(self) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        address = os.environ.get("RAY_ADDRESS")
        place = {"address": address} if address else {"address": "local", "include_dashboard": False}
        try:
            self.ray.init(**place, log_to_driver=False, logging_level="ERROR")
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise InputError(
                f"RAY_ADDRESS={address or ''}: Ray cannot be reached or started ({first_line(error)})"
            ) from error

    def _run(self, cells: list[Cell], questions: Questions) -> Iterator[tuple[Cell, Outcome]]:
        cores, most = self._share()
        begin = self.ray.remote(compute_remotely).options(num_cpus=cores, max_retries=RETRIES)
        left, running = list(cells), dict[Any, Cell]()
        stored: dict[str, Any] = {}  # the question of every task at hand, once for all of its cells
        try:
            while left or running:
                while left and len(running) < most:
                    cell = left.pop(0)
                    if cell.task not in stored:
                        stored = {task: stored[task] for task in {at.task for at in running.values()}}
                        stored[cell.task] = self.ray.put(questions(cell.task))
                    running[begin.remote(cores, cell, [stored[cell.task]])] = cell
                (done, *_), _ = self.ray.wait(list(running))
                yield running.pop(done), self._fetch(done)
        finally:
            for reference in running:
                with suppress(Exception):  # it may have ended by now
                    self.ray.cancel(reference, force=True)

    def _share(self) -> tuple[int, int]:
        """How many cores a cell has, and how many cells may run at once."""
        nodes = [int(node["Resources"].get("CPU", 0)) for node in self.ray.nodes() if node["Alive"]]
        able = [cores for cores in nodes if cores > 0]
        if not able:
            raise InputError("--executor ray: no node of the cluster has a CPU to give")
        cores = min(able) if self.workers is None else max(min(sum(able) // self.workers, min(able)), 1)
        room = sum(node // cores for node in able)
        return cores, room if self.workers is None else min(self.workers, room)

    def _fetch(self, reference: Any) -> Outcome:
        try:
            return self.ray.get(reference)
        except self.ray.exceptions.RayError as error:
            reason = f"{type(error).__name__}: {first_line(error)}"
            return Failure(f"its process was lost on the cluster, after {RETRIES} retries ({reason})")


def compute_remotely(cores: int, cell: Cell, question: list[Any]) -> Outcome:
    """On a node: the question is fetched only when JAX knows how many cores it has."""
    import ray

    _settle_cores(cores)
    if cell.directory is not None and not cell.directory.parent.is_dir():
        cell = replace(cell, directory=None, resume=False)  # the benchmark's files are not on this node
    return try_cell(cell, ray.get(question[0]))


@cache
def _settle_cores(cores: int) -> None:
    use_cores(cores)
