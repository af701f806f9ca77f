"""Everything that a benchmark's rows make: tables, figures and a page, in one folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vlbm.errors import InputError
from vlbm.experiments import figures
from vlbm.experiments.overview import make_overview
from vlbm.experiments.rows import read_rows
from vlbm.experiments.table_files import WRITERS, write_table
from vlbm.experiments.tables import ScoreTable, make_tables
from vlbm.experiments.variants import family
from vlbm.progress import Progress, silent
from vlbm.report.benchmark_page import make_benchmark_page, rows_csv
from vlbm.report.rendering import write_html
from vlbm.storage import write_text

FORMATS = (*WRITERS, *figures.FORMATS)


def write_benchmark(
    directory: Path, output: Path, *, formats: Sequence[str] = FORMATS, progress: Progress = silent
) -> list[ScoreTable]:
    """Write all of it; the overviews are returned. Without a format of pictures no figure is drawn."""
    for name in formats:
        if name not in FORMATS:
            raise InputError(f"format '{name}': must be one of {', '.join(FORMATS)}")
    rows = read_rows(directory)
    suites = dict.fromkeys(row.suite for row in rows)
    overviews = [make_overview(rows, suite) for suite in suites]
    tables = [table for name in dict.fromkeys(map(family, rows)) for table in make_tables(rows, name)]
    for table in (*overviews, *tables):
        write_table(table, output / "tables", formats)
    if "csv" in formats:
        write_text(output / "tables" / "rows.csv", rows_csv(rows))
    pictures = [name for name in formats if name in figures.FORMATS]
    drawn = (
        [figure for suite in suites for figure in figures.draw_figures(rows, directory, suite, progress)]
        if pictures
        else []
    )
    for figure in drawn:
        figure.save(output / "figures", pictures)
    write_html(make_benchmark_page(rows, overviews, tables, drawn), output / "index.html")
    return overviews
