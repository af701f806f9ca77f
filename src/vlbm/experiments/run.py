"""run_cells(): the one engine of comparisons and benchmarks; what is stored is not computed again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from vlbm.experiments.executors.base import Executor, Outcome
from vlbm.experiments.plan import Cell, Questions
from vlbm.progress import Progress, silent

Kept = TypeVar("Kept")


class Store(ABC, Generic[Kept]):
    """Where finished cells are kept, and in what form."""

    @abstractmethod
    def load(self, cell: Cell) -> Kept | None:
        """What is kept of a cell, made from the very same; None if there is nothing."""

    @abstractmethod
    def keep(self, cell: Cell, outcome: Outcome) -> Kept:
        """Store what came of a cell."""

    def prepare(self, cell: Cell) -> Cell:
        """A cell that is about to be computed, with a place for its checkpoints."""
        return cell


def run_cells(
    cells: Iterable[Cell],
    questions: Questions,
    store: Store[Kept],
    executor: Executor,
    *,
    wanted: Callable[[Cell], bool] = lambda cell: True,
    progress: Progress = silent,
) -> Iterator[tuple[Cell, Kept]]:
    """Every cell with what is kept of it: first those that are stored, then the others as they finish.

    `wanted` is asked when a cell is about to be computed. Ctrl-C ends it; what is finished is stored.
    """
    missing = []
    for cell in cells:
        found = store.load(cell)
        if found is None:
            missing.append(cell)
        else:
            yield cell, found
    begun = (store.prepare(cell) for cell in missing if wanted(cell))
    for cell, outcome in executor.run(begun, questions, progress):
        yield cell, store.keep(cell, outcome)
