"""Tables 1 to 6 of the paper from stored rows, the same for other suites, and means over tasks."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from vlbm.experiments.published import NAMES, read_published
from vlbm.experiments.rows import Row
from vlbm.experiments.variants import (
    Variant,
    environment_of,
    family,
    family_tasks,
    family_title,
    list_variants,
    name_method,
    order_methods,
    task_title,
)

COLUMNS = 6  # tasks beside each other
PUBLISHED = "published"
WITHOUT_VALUE = "no value: true returns are all the same, or none is positive to take a share of"


@dataclass(frozen=True)
class Metric:
    """A score and how tables show it."""

    name: str  # its name in rows
    title: str
    explanation: str
    higher: bool = False  # True if more is better
    digits: int | None = 2  # None: as many as the numbers need


METRICS = {
    metric.name: metric
    for metric in (
        Metric(
            "rank_correlation",
            "Rank correlation",
            "Spearman's rank correlation between estimated and true returns",
            higher=True,
        ),
        Metric(
            "dope_regret",
            "Regret@1 (DOPE)",
            "DOPE's regret@1, as the paper prints it: what deploying the policy estimated best loses, as a "
            "share of the best true return",
        ),
        Metric(
            "regret",
            "Regret@1 (range)",
            "Regret@1 over the range: the same loss as a share of the range of true returns",
        ),
        Metric("absolute_error", "MAE", "Mean absolute error of the estimated returns", digits=None),
    )
}
# The paper's numbers of its tables; regret over the range is ours and stands beside.
NUMBERS = {
    ("gym-mujoco", "rank_correlation"): 1,
    ("adroit", "rank_correlation"): 2,
    ("gym-mujoco", "dope_regret"): 3,
    ("adroit", "dope_regret"): 4,
    ("gym-mujoco", "absolute_error"): 5,
    ("adroit", "absolute_error"): 6,
}


@dataclass(frozen=True)
class Cell:
    """A mean over seeds with its deviation; without a mean it is blank, or its notes say why not."""

    mean: float | None = None
    deviation: float | None = None
    digits: int = 2
    seeds: int = 0
    best: bool = False
    failed: bool = False
    notes: tuple[int, ...] = ()  # which of the table's notes, from 0


@dataclass(frozen=True)
class Line:
    """A method in a table, ours or as published."""

    method: str
    label: str
    cells: tuple[Cell, ...]
    published: bool = False


@dataclass(frozen=True)
class Block:
    """As many columns as a page is wide."""

    columns: tuple[tuple[str, str], ...]  # name and heading
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class ScoreTable:
    """Methods by tasks, or by metrics."""

    name: str  # of its files
    metric: str  # what heads the column of methods
    title: str
    caption: str
    blocks: tuple[Block, ...]
    notes: tuple[str, ...] = ()


def make_tables(rows: Sequence[Row], family_name: str) -> list[ScoreTable]:
    """Every metric that has a value for the tasks of one family."""
    tables = [make_table(rows, family_name, metric) for metric in METRICS.values()]
    return [table for table in tables if any(_has_own_values(block) for block in table.blocks)]


def make_table(rows: Sequence[Row], family_name: str, metric: Metric) -> ScoreTable:
    """One metric of all methods for the tasks of one family, in the paper's layout."""
    own = [row for row in rows if family(row) == family_name]
    tasks = family_tasks(family_name, own)
    lines, notes = make_lines(own, tasks, metric)
    blocks = []
    for columns in split_tasks(tasks):
        places = [tasks.index(task) for task in columns]
        blocks.append(
            Block(
                tuple((task, task_title(task)) for task in columns),
                tuple(replace(line, cells=tuple(line.cells[place] for place in places)) for line in lines),
            )
        )
    number, title = NUMBERS.get((family_name, metric.name)), family_title(family_name)
    stem = "range-regret" if metric.name == "regret" else metric.name.replace("_", "-")
    return ScoreTable(
        name=f"{family_name}-{stem}" if number is None else f"table-{number}-{stem}-{family_name}",
        metric=metric.title,
        title=("" if number is None else f"Table {number}: ") + f"{metric.title}, {title}",
        caption=f"{metric.explanation}, for all {title} tasks. {describe_lines(own, lines)}",
        blocks=tuple(blocks),
        notes=tuple(notes),
    )


def make_lines(
    rows: Sequence[Row], tasks: Sequence[str], metric: Metric
) -> tuple[tuple[Line, ...], list[str]]:
    """A line for every variant, and each method's published numbers after its own; and notes on cells.

    The lines are the same for every metric.
    """
    groups = defaultdict(list)
    for row in rows:
        groups[Variant.of(row), row.problem].append(row)
    published = read_published()
    known = {method for _, task, method in published if task in tasks}
    variants, notes = list_variants(rows), list[str]()
    lines = []
    for method in order_methods([*(variant.method for variant in variants), *known]):
        for variant in variants:
            if variant.method == method:
                cells = tuple(make_cell(groups[variant, task], metric, notes) for task in tasks)
                lines.append(Line(method, variant.label, cells))
        if method in known:
            found = [published.get((metric.name, task, method)) for task in tasks]
            cells = tuple(
                Cell() if one is None else Cell(one.mean, one.deviation, seeds=3, best=one.best)
                for one in found
            )
            name = NAMES.get(method, name_method(method))
            lines.append(Line(method, f"{name}, {PUBLISHED}", cells, published=True))
    digits = _choose_digits(lines) if metric.digits is None else metric.digits
    lines = [
        replace(line, cells=tuple(replace(cell, digits=digits) for cell in line.cells)) for line in lines
    ]
    return mark_best(lines, [metric] * len(tasks)), notes


def make_cell(rows: Sequence[Row], metric: Metric, notes: list[str]) -> Cell:
    """Mean and deviation over the seeds that have a score; `notes` grows by why others have none."""
    values, remarks = [], []
    for row in sorted(rows, key=lambda row: row.seed):
        value = math.nan if row.scores is None else row.scores[metric.name]
        if row.failed is not None:
            remarks.append(f"{f'seed {row.seed} ' if len(rows) > 1 else ''}failed: {row.failed}")
        elif row.scores is None:
            remarks.append(f"not scored, for the truth is of another quantity than the {row.estimand}")
        elif math.isnan(value):
            remarks.append(WITHOUT_VALUE)
        else:
            values.append(value)
    notes += [remark for remark in dict.fromkeys(remarks) if remark not in notes]
    marks = tuple(sorted({notes.index(remark) for remark in remarks}))
    failed = any(row.failed is not None for row in rows)
    if not values:
        return Cell(failed=failed, notes=marks)
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Cell(float(np.mean(values)), deviation, seeds=len(values), failed=failed, notes=marks)


def mark_best(
    lines: Sequence[Line], metrics: Sequence[Metric], left_out: Collection[tuple[int, int]] = ()
) -> tuple[Line, ...]:
    """The best mean of ours in every column, as it is printed; published lines keep their marks.

    Cells that are `left_out`, by line and column, do not compete.
    """
    table = [list(line.cells) for line in lines]
    for place, metric in enumerate(metrics):
        means = {
            number: mean
            for number, cells in enumerate(table)
            if (mean := cells[place].mean) is not None
            and not lines[number].published
            and (number, place) not in left_out
        }
        if means:
            top = (max if metric.higher else min)(means, key=means.__getitem__)
            printed = format_mean(table[top][place])
            for number in means:
                cell = table[number][place]
                table[number][place] = replace(cell, best=format_mean(cell) == printed)
    return tuple(replace(line, cells=tuple(cells)) for line, cells in zip(lines, table, strict=True))


def split_tasks(tasks: Sequence[str]) -> list[tuple[str, ...]]:
    """Into blocks of as many environments as fit side by side."""
    blocks: list[tuple[str, ...]] = []
    for environment in dict.fromkeys(environment_of(task) for task in tasks):
        own = tuple(task for task in tasks if environment_of(task) == environment)
        if blocks and len(blocks[-1]) + len(own) <= COLUMNS:
            blocks[-1] += own
        else:
            blocks += [own[start : start + COLUMNS] for start in range(0, len(own), COLUMNS)]
    return blocks


def describe_lines(rows: Sequence[Row], lines: Sequence[Line]) -> str:
    """What the numbers of a table are, and which are not ours."""
    counts = sorted({cell.seeds for line in lines if not line.published for cell in line.cells if cell.seeds})
    seeds = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1])))) if counts else "0"
    text = (
        f"Mean ± standard deviation over {seeds} seed{'' if counts == [1] else 's'}; bold: the best of ours."
    )
    if any(line.published for line in lines):
        text += f" Lines called {PUBLISHED} are the paper's (ICLR 2023), bold as it prints them;"
        text += " its IS is our WPDIS."
    if any(row.regenerated for row in rows):
        text += " Regenerated data only look like the published ones."
    return text


def format_mean(cell: Cell) -> str:
    """The mean with its digits; empty where there is none."""
    return "" if cell.mean is None else f"{cell.mean:z.{cell.digits}f}"


def format_deviation(cell: Cell) -> str:
    return "" if cell.deviation is None else f"{cell.deviation:.{cell.digits}f}"


def _choose_digits(lines: Sequence[Line]) -> int:
    """Three digits for the largest."""
    means = [abs(cell.mean) for line in lines for cell in line.cells if cell.mean is not None]
    largest = max(means, default=0.0)
    return min(max(2 - math.floor(math.log10(largest)), 0), 4) if largest > 0 else 0


def _has_own_values(block: Block) -> bool:
    return any(cell.mean is not None for line in block.lines if not line.published for cell in line.cells)
