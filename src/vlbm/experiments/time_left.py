"""TimeLeft: how long the rest of a benchmark takes, judged by the cells that have finished."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable

from vlbm.experiments.plan import Cell
from vlbm.experiments.rows import Row


class TimeLeft:
    """Cells take as long as others of the same method, or as all others if there is none."""

    def __init__(self, cells: Iterable[Cell], *, at_once: int = 1):
        self._left = [(cell.task, cell.method) for cell in cells]
        self._at_once = at_once
        self._taken: dict[tuple[str, ...], list[float]] = defaultdict(list)

    def learn(self, row: Row) -> None:
        """A row that was there already."""
        seconds = sum(value for value in row.seconds.values() if not math.isnan(value))
        if row.failed is None:
            for group in ((row.task, row.method), (row.method,), ()):
                self._taken[group].append(seconds)

    def finish(self, row: Row) -> None:
        self.learn(row)
        self._left.remove((row.task, row.method))

    @property
    def seconds(self) -> float | None:
        """None while nothing is known."""
        if not self._taken:
            return None
        return sum(map(self._expect, self._left)) / max(min(self._at_once, len(self._left)), 1)

    def _expect(self, cell: tuple[str, str]) -> float:
        task, method = cell
        group = next(group for group in ((task, method), (method,), ()) if self._taken.get(group))
        return sum(self._taken[group]) / len(self._taken[group])


def describe_seconds(seconds: float) -> str:
    """As long as it needs to be: 41 s, 12 min, 3.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
