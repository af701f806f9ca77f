"""The page of a benchmark: its answer, tables, figures, failures and where they come from."""

from __future__ import annotations

import csv
import io
import math

import pytest

from made_benchmarks import made_failure, made_row, write_rows
from vlbm.errors import InputError
from vlbm.report.benchmark_files import write_benchmark
from vlbm.report.benchmark_page import find_warnings, rows_csv

TABLES = ("md", "tex", "csv")


def write(tmp_path, rows, **options) -> str:
    write_benchmark(write_rows(tmp_path, rows), tmp_path / "out", **options)
    return (tmp_path / "out" / "index.html").read_text()


def test_the_page_says_who_ranks_best_and_holds_all_tables(tmp_path):
    rows = [made_row("dope/hopper-medium", rank=0.9), made_row("dope/hopper-medium", "fqe", rank=0.1)]
    page = write(tmp_path, rows, formats=TABLES)
    assert "<strong>VLBM</strong> ranks policies best of 2 methods" in page
    for title in (
        "Table 1: Rank correlation",
        "Table 3: Regret@1 (DOPE)",
        "Regret@1 (range)",
        "Table 5: MAE",
    ):
        assert title in page
    assert "<td><strong>0.90</strong></td>" in page
    assert "<em>VLBM, published</em>" in page
    assert "1 minute" not in page


def test_one_method_alone_is_not_called_the_best(tmp_path):
    page = write(tmp_path, [made_row()], formats=TABLES)
    assert "<strong>VLBM</strong> ranks policies, with a mean rank correlation of 0.50" in page


def test_failures_are_listed_with_their_reasons(tmp_path):
    page = write(tmp_path, [made_row(), made_failure("pendulum", "fqe", 1, "a <wild> loss")], formats=TABLES)
    assert "pendulum, FQE, seed 1 failed: a &lt;wild&gt; loss" in page
    assert "2 runs of 2 methods on 1 task; 1 failed." in page


def test_a_benchmark_of_failures_alone_still_has_a_page(tmp_path):
    page = write(tmp_path, [made_failure("pendulum", "fqe", 0, "no luck")])
    assert "No method has a rank correlation" in page


def test_figures_are_in_the_page_itself(tmp_path):
    pytest.importorskip("matplotlib")
    page = write(tmp_path, [made_row(), made_row(seed=1)], formats=("svg",))
    assert page.count('<img src="data:image/png;base64,') == 2
    assert sorted(path.name for path in (tmp_path / "out" / "figures").iterdir()) == [
        "bars-all-tasks-embedded.svg",
        "estimates-embedded-1.svg",
    ]


def test_without_a_format_of_pictures_nothing_is_drawn(tmp_path):
    page = write(tmp_path, [made_row()], formats=TABLES)
    assert "<img" not in page
    assert not (tmp_path / "out" / "figures").exists()
    names = {path.suffix for path in (tmp_path / "out" / "tables").iterdir()}
    assert names == {".md", ".tex", ".csv"}


def test_an_unknown_format_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(InputError, match="format 'jpg': must be one of md, tex, csv, png, svg, pdf"):
        write(tmp_path, [made_row()], formats=("jpg",))
    assert not (tmp_path / "out").exists()


def test_rows_that_cannot_be_compared_are_warned_of():
    other = {"checksum": "fedcba9876543210", "episodes": 200, "steps": 40_000}
    rows = [made_row(), made_row(seed=1, data=other), made_row(seed=2, version="0.2.0")]
    assert find_warnings(rows) == [
        "Rows were made by different versions of vlbm: 0.1.0, 0.2.0.",
        "pendulum: rows are of different data (checksums 0123456789ab, fedcba987654).",
    ]
    assert find_warnings(rows[:1]) == []


def test_all_rows_are_there_as_a_file_with_empty_cells_for_what_is_unknown():
    rows = [made_row(dope_regret=math.nan), made_failure("pendulum", "fqe", 1, "no luck")]
    first, second = csv.DictReader(io.StringIO(rows_csv(rows)))
    assert (first["rank_correlation"], first["dope_regret"], first["seconds_fit"]) == ("0.5", "", "60.0")
    assert (second["failed"], second["rank_correlation"], second["peak_memory"]) == ("no luck", "", "")
