"""One page of a whole benchmark: means, figures, tables and where they come from."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence

import numpy as np
from markupsafe import Markup, escape

from vlbm.experiments.figures import Figure
from vlbm.experiments.rows import SCORES, Row
from vlbm.experiments.table_files import mark, marks, plain_cell
from vlbm.experiments.tables import Cell, Line, ScoreTable
from vlbm.experiments.variants import Variant, list_variants, order_tasks
from vlbm.report.downloads import to_csv
from vlbm.report.numbers import NOTHING, format_count, format_number
from vlbm.report.parts import (
    Block,
    Bullets,
    Download,
    Downloads,
    Facts,
    Page,
    Picture,
    Prose,
    Section,
    Table,
    drop_empty,
)

GIGABYTE = 1e9


def make_benchmark_page(
    rows: Sequence[Row],
    overviews: Sequence[ScoreTable],
    tables: Sequence[ScoreTable],
    figures: Sequence[Figure],
) -> Page:
    """The same parts and look as the page of an evaluation."""
    tasks, methods = {row.task for row in rows}, {row.method for row in rows}
    failed = sum(row.failed is not None for row in rows)
    ran = f"{format_count(len(rows), 'run')} of {format_count(len(methods), 'method')} "
    ran += f"on {format_count(len(tasks), 'task')}"
    return Page(
        title=f"Benchmark: {ran}",
        eyebrow="Off-policy evaluation · benchmark",
        answer=(
            write_answer(overviews[0], rows[0].suite),
            f"{ran}{f'; {failed:,} failed' if failed else ''}.",
        ),
        warnings=tuple(find_warnings(rows)),
        sections=drop_empty(
            [
                *(table_section(table) for table in overviews),
                Section("figures", "Figures", tuple(map(show_figure, figures))),
                *(table_section(table) for table in tables),
                provenance_section(rows),
            ]
        ),
    )


def write_answer(overview: ScoreTable, suite: str) -> Markup:
    """Who ranks best over all tasks of a suite."""
    own = [line for line in overview.blocks[0].lines if not line.published]
    best = [line for line in own if line.cells[0].best]
    if not best:
        return Markup("No method has a rank correlation with the true returns.")
    names = Markup(" and ").join(Markup("<strong>{}</strong>").format(line.label) for line in best)
    among = f" best of {len(own)} methods" if len(own) > len(best) else ""
    return Markup("{} {} policies{}, with a mean rank correlation of {} in the {} suite.").format(
        names, "ranks" if len(best) == 1 else "rank", among, plain_cell(best[0].cells[0]), suite
    )


def table_section(table: ScoreTable) -> Section:
    """The table with its caption above and its footnotes below."""
    blocks: list[Block] = [Prose((table.caption,), note=True)]
    for block in table.blocks:
        headings = (table.metric, *(title for _, title in block.columns))
        rows = tuple((_show_label(line), *map(show_cell, line.cells)) for line in block.lines)
        blocks.append(Table(headings, rows))
    if table.notes:
        notes = (
            Markup("<sup>{}</sup> {}").format(mark(place), note) for place, note in enumerate(table.notes)
        )
        blocks.append(Prose(tuple(notes), note=True))
    return Section(table.name, table.title, tuple(blocks))


def show_cell(cell: Cell) -> Markup:
    text = escape(plain_cell(cell))
    if cell.best:
        text = Markup("<strong>{}</strong>").format(text)
    return text + Markup("<sup>{}</sup>").format(marks(cell)) if cell.notes else text


def show_figure(figure: Figure) -> Picture:
    data = base64.b64encode(figure.as_png()).decode()
    return Picture(figure.title, f"data:image/png;base64,{data}", figure.caption)


def find_warnings(rows: Sequence[Row]) -> list[str]:
    """What makes rows hard to compare: other versions, other data, other estimands."""
    found = []
    versions = sorted({row.version for row in rows})
    if len(versions) > 1:
        found.append(f"Rows were made by different versions of vlbm: {', '.join(versions)}.")
    for task in order_tasks(row.task for row in rows):
        own = [row for row in rows if row.task == task]
        checksums = sorted({row.data["checksum"][:12] for row in own})
        if len(checksums) > 1:
            found.append(f"{task}: rows are of different data (checksums {', '.join(checksums)}).")
        estimands = sorted({str(row.estimand) for row in own})
        if len(estimands) > 1:
            found.append(f"{task}: rows estimate different quantities: {'; '.join(estimands)}.")
    return found


def provenance_section(rows: Sequence[Row]) -> Section:
    """Versions, seeds, time, memory, data and failures, and all rows as a file."""
    done = [row for row in rows if row.failed is None]
    hours = np.nansum([second for row in rows for second in row.seconds.values()]) / 3600
    facts = (
        ("version", ", ".join(f"vlbm {version}" for version in sorted({row.version for row in rows}))),
        ("seeds", ", ".join(map(str, sorted({row.seed for row in rows})))),
        ("runs", f"{len(rows):,}, of which {len(rows) - len(done):,} failed"),
        ("time in all", f"{format_number(hours, 1)} hours"),
        ("estimated", "; ".join(sorted({str(row.estimand) for row in rows}))),
    )
    blocks: list[Block] = [
        Downloads((Download("rows.csv", "text/csv", rows_csv(rows)),)),
        Facts(facts),
        time_table(rows),
        data_table(rows),
    ]
    failures = tuple(
        ("doubtful", f"{row.task}, {Variant.of(row).label}, seed {row.seed} failed: {row.failed}")
        for row in rows
        if row.failed is not None
    )
    return Section("provenance", "Provenance", (*blocks, *([Bullets(failures)] if failures else [])))


def time_table(rows: Sequence[Row]) -> Table:
    """What one run of every method costs."""
    lines = []
    for variant in list_variants(rows):
        own = [row for row in rows if Variant.of(row) == variant and row.failed is None]
        memory = [row.peak_memory / GIGABYTE for row in own if row.peak_memory is not None]
        means = [_mean([row.seconds[name] for row in own]) for name in ("fit", "evaluate")]
        lines.append(
            (
                variant.label,
                str(len(own)),
                *(format_number(mean, 0) for mean in means),
                format_number(max(memory), 1) if memory else NOTHING,
            )
        )
    headings = ("method", "runs", "fit, s", "evaluate, s", "peak memory, GB")
    return Table(headings, tuple(lines), "Mean seconds of a run, and the most memory that one took.")


def data_table(rows: Sequence[Row]) -> Table:
    """The logged data of every task."""
    lines = []
    for task in order_tasks(row.task for row in rows):
        for checksum, episodes, steps in dict.fromkeys(
            (row.data["checksum"], row.data["episodes"], row.data["steps"])
            for row in rows
            if row.task == task
        ):
            lines.append((task, f"{episodes:,}", f"{steps:,}", checksum[:16]))
    return Table(("task", "episodes", "steps", "checksum"), tuple(lines), "Logged data.")


def rows_csv(rows: Sequence[Row]) -> str:
    """One record for every row, without its policies."""
    return to_csv(
        [
            {
                **{name: getattr(row, name) for name in ("task", "method", "preset")},
                "settings": Variant.of(row).settings,
                "seed": row.seed,
                "version": row.version,
                "checksum": row.data["checksum"],
                **_drop_nan(row.scores or dict.fromkeys(SCORES, math.nan)),
                **{f"seconds_{name}": value for name, value in _drop_nan(row.seconds).items()},
                "peak_memory": row.peak_memory,
                "failed": row.failed,
            }
            for row in rows
        ]
    )


def _drop_nan(values: Mapping[str, float]) -> dict[str, float | None]:
    return {name: None if math.isnan(value) else value for name, value in values.items()}


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return float(np.mean(known)) if known else math.nan


def _show_label(line: Line) -> Markup:
    return Markup("<em>{}</em>").format(line.label) if line.published else escape(line.label)
