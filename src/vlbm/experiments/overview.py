"""Means over all tasks of a suite, a line for every method: what the paper's Figure 3 shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from vlbm.experiments.rows import Row
from vlbm.experiments.tables import (
    METRICS,
    Block,
    Cell,
    Line,
    ScoreTable,
    describe_lines,
    make_lines,
    mark_best,
)
from vlbm.experiments.variants import order_tasks

NOWHERE = "no score in any task; the tables of tasks say why"


def make_overview(rows: Sequence[Row], suite: str) -> ScoreTable:
    """All metrics side by side, over the tasks that there are rows of."""
    own = [row for row in rows if row.suite == suite]
    tasks = order_tasks(row.problem for row in own)
    metrics = list(METRICS.values())
    by_metric = [make_lines(own, tasks, metric)[0] for metric in metrics]
    notes: list[str] = []
    lines, left_out = [], set()
    # Means over fewer tasks than others have are of another quantity.
    most = [max(count_scores(line) for line in found if not line.published) for found in by_metric]
    for number, parts in enumerate(zip(*by_metric, strict=True)):
        failed = sum(cell.failed for cell in parts[0].cells)
        count = Cell() if parts[0].published else Cell(float(failed), digits=0)
        lines.append(replace(parts[0], cells=(*(average_cells(part.cells, notes) for part in parts), count)))
        left_out |= {(number, place) for place, part in enumerate(parts) if count_scores(part) < most[place]}
    columns = (*((metric.name, metric.title) for metric in metrics), ("failed", "failed"))
    over = f"{len(tasks)} tasks" if len(tasks) > 1 else tasks[0]
    return ScoreTable(
        name=f"overview-{suite}",
        metric="Method",
        title=f"Means over all tasks of the {suite} suite",
        caption=f"Means over {over}, with the deviation that those of the tasks give them, and in how many "
        f"tasks a seed failed. {describe_lines(own, [line for part in by_metric for line in part])}",
        blocks=(Block(columns, mark_best(lines, metrics, left_out)),),
        notes=tuple(notes),
    )


def count_scores(line: Line) -> int:
    """How many tasks a line has a mean of."""
    return sum(cell.mean is not None for cell in line.cells)


def average_cells(cells: Sequence[Cell], notes: list[str]) -> Cell:
    """The mean of those that have one, and its deviation if all of them have one.

    `notes` grows where some have none.
    """
    found = [cell for cell in cells if cell.mean is not None]
    remarked = any(cell.notes for cell in cells)
    if not found and not remarked:
        return Cell()
    marks: tuple[int, ...] = ()
    if len(found) < len(cells):
        remark = f"over {len(found)} of {len(cells)} tasks" if found else NOWHERE
        notes += [] if remark in notes else [remark]
        marks = (notes.index(remark),)
    if not found:
        return Cell(failed=all(cell.failed for cell in cells), notes=marks)
    deviations = [cell.deviation for cell in found if cell.deviation is not None]
    known = len(deviations) == len(found)
    return Cell(
        mean=float(np.mean([cell.mean for cell in found])),
        deviation=float(np.sqrt(np.square(deviations).sum()) / len(found)) if known else None,
        digits=found[0].digits,
        seeds=min(cell.seeds for cell in found),
        notes=marks,
    )
