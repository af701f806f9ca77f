"""Tables of stored rows: means and deviations over seeds, the best, what is missing, what failed."""

from __future__ import annotations

import csv
import io
import math
import re

import pytest

from made_benchmarks import made_failure, made_row
from vlbm.experiments.overview import make_overview
from vlbm.experiments.table_files import as_csv, as_latex, as_markdown, escape_latex, mark, write_table
from vlbm.experiments.tables import METRICS, Cell, ScoreTable, make_table, make_tables

RANK, ERROR = METRICS["rank_correlation"], METRICS["absolute_error"]


def cell(table: ScoreTable, method: str, task: str) -> Cell:
    """The one cell of a line and a column."""
    (found,) = (
        cell
        for block in table.blocks
        for line in block.lines
        if line.label == method
        for (name, _), cell in zip(block.columns, line.cells, strict=True)
        if name == task
    )
    return found


def labels(table: ScoreTable) -> list[str]:
    return [line.label for line in table.blocks[0].lines]


def test_a_cell_is_the_mean_and_the_sample_deviation_over_seeds():
    rows = [made_row(seed=seed, rank=rank) for seed, rank in enumerate((0.5, 0.7, 0.9))]
    found = cell(make_table(rows, "embedded", RANK), "VLBM", "pendulum")
    assert (round(found.mean, 12), round(found.deviation, 12), found.seeds) == (0.7, 0.2, 3)


def test_one_seed_has_no_deviation():
    table = make_table([made_row(rank=0.5)], "embedded", RANK)
    assert cell(table, "VLBM", "pendulum").deviation is None
    assert "| VLBM | **0.50** |" in as_markdown(table)


def test_the_best_is_the_highest_rank_and_the_lowest_error():
    rows = [made_row(method="vlbm", rank=0.9, error=50.0), made_row(method="fqe", rank=0.2, error=10.0)]
    rank, error = (make_table(rows, "embedded", metric) for metric in (RANK, ERROR))
    assert [cell(rank, method, "pendulum").best for method in ("VLBM", "FQE")] == [True, False]
    assert [cell(error, method, "pendulum").best for method in ("VLBM", "FQE")] == [False, True]


def test_means_that_are_printed_alike_are_both_the_best():
    rows = [made_row(method="vlbm", rank=0.901), made_row(method="fqe", rank=0.899)]
    table = make_table(rows, "embedded", RANK)
    assert all(cell(table, method, "pendulum").best for method in ("VLBM", "FQE"))


def test_what_was_not_run_is_blank():
    rows = [made_row("hopper-medium"), made_row("hopper-expert"), made_row("hopper-medium", "fqe")]
    table = make_table(rows, "gym", RANK)
    assert cell(table, "FQE", "hopper-expert") == Cell()
    assert re.search(r"\| FQE \|  \| \*\*0.50\*\* \|", as_markdown(table))


def test_a_failed_cell_is_marked_and_its_reason_is_a_footnote():
    rows = [made_row(), made_failure("pendulum", "fqe", 0, "the loss was NaN at step 7")]
    table = make_table(rows, "embedded", RANK)
    assert "| FQE | failed<sup>a</sup> |" in as_markdown(table)
    assert "<sup>a</sup> failed: the loss was NaN at step 7" in as_markdown(table)
    assert r"FQE & failed$^{\mathrm{a}}$ \\" in as_latex(table)
    assert not cell(table, "FQE", "pendulum").best


def test_where_some_seeds_failed_the_others_are_averaged_and_the_footnote_says_which():
    rows = [made_row(seed=0, rank=0.4), made_row(seed=1, rank=0.6)]
    rows.append(made_failure("pendulum", "vlbm", 2, "out of memory"))
    table = make_table(rows, "embedded", RANK)
    found = cell(table, "VLBM", "pendulum")
    assert (found.mean, found.seeds, found.failed) == (0.5, 2, True)
    assert table.notes == ("seed 2 failed: out of memory",)


def test_estimates_that_the_truth_is_not_of_are_not_scored_and_it_is_said():
    table = make_table([made_row(), made_row(method="wpdis", scores=None)], "embedded", RANK)
    assert "| WPDIS | \N{EN DASH}<sup>a</sup> |" in as_markdown(table)
    assert "not scored" in table.notes[0]


def test_both_regrets_are_shown_under_their_own_names():
    tables = make_tables([made_row("dope/hopper-medium", regret=0.3, dope_regret=0.2)], "gym-mujoco")
    assert [table.title for table in tables] == [
        "Table 1: Rank correlation, Gym-Mujoco",
        "Table 3: Regret@1 (DOPE), Gym-Mujoco",
        "Regret@1 (range), Gym-Mujoco",
        "Table 5: MAE, Gym-Mujoco",
    ]
    assert [cell(tables[place], "VLBM", "dope/hopper-medium").mean for place in (1, 2)] == [0.2, 0.3]
    published = cell(tables[1], "VLBM, published", "dope/hopper-medium")
    assert (published.mean, published.deviation) == (0.11, 0.11)
    assert cell(tables[2], "VLBM, published", "dope/hopper-medium").mean is None


def test_dopes_regret_is_left_out_where_no_task_has_one():
    tables = make_tables([made_row(dope_regret=math.nan)], "embedded")
    assert [table.name for table in tables] == [
        "embedded-rank-correlation",
        "embedded-range-regret",
        "embedded-absolute-error",
    ]


def test_the_papers_tables_have_its_columns_and_its_numbers_in_its_order():
    gym = make_table([made_row("dope/hopper-medium")], "gym-mujoco", RANK)
    assert [title for _, title in gym.blocks[0].columns] == ["Ant-E", "Ant-M-E", "Ant-M", "Ant-M-R", "Ant-R"]
    assert [block.columns[0][1] for block in gym.blocks] == [
        "Ant-E",
        "HalfCheetah-E",
        "Walker2d-E",
        "Hopper-E",
    ]
    assert labels(gym) == [
        "IS, published",
        "VPM, published",
        "DICE, published",
        "DR, published",
        "FQE, published",
        "AR ensemble, published",
        "VLM, published",
        "VLM+RSA (MSE), published",
        "VLM+RSA, published",
        "VLM+RSA ensemble, published",
        "VLBM",
        "VLBM, published",
    ]
    found = cell(gym, "VLBM, published", "dope/hopper-medium")
    assert (found.mean, found.deviation, found.best) == (0.7, 0.03, True)
    assert cell(gym, "VPM, published", "dope/hopper-medium-expert") == Cell()
    adroit = make_table([made_row("dope/door-human")], "adroit", RANK)
    assert [title for _, title in adroit.blocks[0].columns] == [
        "Door human",
        "Door cloned",
        "Door expert",
        "Pen human",
        "Pen cloned",
        "Pen expert",
    ]
    assert labels(adroit)[-3:] == ["AR ensemble, published", "VLBM", "VLBM, published"]


def test_the_papers_is_stands_beside_our_weighted_per_decision_one():
    rows = [made_row("dope/hopper-medium", method) for method in ("is", "wpdis")]
    assert labels(make_table(rows, "gym-mujoco", RANK))[:3] == ["IS", "WPDIS", "IS, published"]


def test_published_numbers_do_not_take_the_bold_from_ours():
    table = make_table([made_row("dope/hopper-medium", rank=0.1)], "gym-mujoco", RANK)
    assert cell(table, "VLBM", "dope/hopper-medium").best


def test_the_gym_suites_hopper_is_not_the_papers():
    table = make_table([made_row("hopper-medium")], "gym", RANK)
    assert labels(table) == ["VLBM"]


def test_presets_settings_and_regenerated_data_have_lines_of_their_own():
    rows = [
        made_row("dope/hopper-medium"),
        made_row("dope/hopper-medium (regenerated)"),
        made_row("dope/hopper-medium", preset="paper", settings={"drive": "own"}),
    ]
    table = make_table(rows, "gym-mujoco", RANK)
    assert labels(table)[-4:] == [
        "VLBM",
        "VLBM [regenerated data]",
        "VLBM [paper; drive=own]",
        "VLBM, published",
    ]
    assert "Regenerated data only look like" in table.caption


def test_errors_have_as_many_digits_as_they_need():
    def digits(error: float) -> int:
        return cell(make_table([made_row(error=error)], "embedded", ERROR), "VLBM", "pendulum").digits

    assert [digits(error) for error in (1234.0, 40.0, 4.0, 0.04, 0.0)] == [0, 1, 2, 4, 0]


def test_markdown_keeps_bars_in_names_out_of_its_columns():
    text = as_markdown(make_table([made_row(settings={"a": "x|y"})], "embedded", RANK))
    (line,) = (line for line in text.splitlines() if "x" in line)
    assert line.count("|") == 3


def test_latex_escapes_what_would_be_commands():
    table = make_table([made_row(settings={"learning_rate": "1e-3 & 50%"})], "embedded", RANK)
    assert r"VLBM [learning\_rate=1e-3 \& 50\%] & $\mathbf{0.50}$ \\" in as_latex(table)
    assert escape_latex("\\ { } ~ ^ # $") == (
        r"\textbackslash{} \{ \} \textasciitilde{} \textasciicircum{} \# \$"
    )


def test_latex_has_the_same_number_of_columns_in_every_row():
    rows = [made_row(f"{task}-medium") for task in ("hopper", "ant")] + [made_row("hopper-expert")]
    rows += [made_row(f"walker2d-{name}") for name in ("random", "medium", "expert", "medium-expert")]
    text = as_latex(make_table(rows, "gym", RANK))
    (width,) = re.findall(r"@\{\}l(r+)@\{\}", text)
    counted = {line.count(" &") for line in text.splitlines() if r"\\" in line}
    assert counted == {len(width)}
    assert text.count("{") == text.count("}")
    for word in (r"\toprule", r"\midrule", r"\bottomrule", r"\begin{table}", r"\end{table}"):
        assert word in text


def test_deviations_are_subscripts_in_latex():
    rows = [made_row(seed=seed, rank=rank) for seed, rank in enumerate((0.5, 0.7, 0.9))]
    assert r"VLBM & $\mathbf{0.70}_{0.20}$ \\" in as_latex(make_table(rows, "embedded", RANK))


def test_csv_has_a_record_for_every_cell_with_all_digits():
    rows = [made_row(seed=seed, rank=rank) for seed, rank in enumerate((0.5, 0.25))]
    rows.append(made_failure("pendulum", "fqe", 0, "a reason, with a comma"))
    records = list(csv.DictReader(io.StringIO(as_csv(make_table(rows, "embedded", RANK)))))
    assert [record["method"] for record in records] == ["FQE", "VLBM"]
    assert (records[1]["mean"], records[1]["seeds"], records[1]["best"]) == ("0.375", "2", "1")
    assert float(records[1]["standard_deviation"]) == pytest.approx(0.125 * math.sqrt(2))
    assert (records[0]["mean"], records[0]["failed"]) == ("", "1")
    assert records[0]["notes"] == "failed: a reason, with a comma"


def test_only_the_formats_that_are_asked_for_are_written(tmp_path):
    table = make_table([made_row()], "embedded", RANK)
    paths = write_table(table, tmp_path, ("tex", "csv"))
    assert [path.name for path in paths] == [f"{table.name}.tex", f"{table.name}.csv"]
    assert sorted(tmp_path.iterdir()) == sorted(paths)


def test_footnotes_go_on_after_z():
    assert [mark(number) for number in (0, 25, 26, 27)] == ["a", "z", "aa", "ab"]


def test_the_overview_averages_tasks_and_their_deviations():
    rows = [
        made_row(task, seed=seed, rank=rank)
        for task, ranks in {"hopper-medium": (0.4, 0.6), "hopper-expert": (0.7, 0.9)}.items()
        for seed, rank in enumerate(ranks)
    ]
    (line,) = make_overview(rows, "gym").blocks[0].lines
    assert line.cells[0].mean == pytest.approx(0.65)
    # Both deviations are 0.1 * sqrt(2); that of their mean is sqrt(0.02 + 0.02) / 2.
    assert line.cells[0].deviation == pytest.approx(0.1)
    assert line.cells[-1].mean == 0.0


def test_a_method_with_fewer_tasks_does_not_compete_for_the_best_mean():
    rows = [made_row("hopper-medium", rank=0.1), made_row("hopper-expert", rank=0.1)]
    rows += [made_row("hopper-medium", "fqe", rank=0.9), made_failure("hopper-expert", "fqe", 0, "no luck")]
    table = make_overview(rows, "gym")
    ranks = {line.label: line.cells[0] for line in table.blocks[0].lines}
    assert ranks["VLBM"].best
    assert not ranks["FQE"].best
    assert [line.cells[-1].mean for line in table.blocks[0].lines] == [1.0, 0.0]
    assert table.notes == ("over 1 of 2 tasks",)


def test_where_no_method_has_all_tasks_those_with_most_compete():
    rows = [made_row("hopper-medium", rank=0.1), made_row("hopper-expert", rank=math.nan)]
    (line,) = make_overview(rows, "gym").blocks[0].lines
    assert line.cells[0].best
    assert line.cells[0].notes == (0,)


def test_the_overview_says_who_was_never_scored():
    table = make_overview([made_row(), made_row(method="wpdis", scores=None)], "embedded")
    lines = {line.label: line for line in table.blocks[0].lines}
    assert (lines["WPDIS"].cells[0].mean, lines["WPDIS"].cells[0].notes) == (None, (0,))
    assert table.notes == ("no score in any task; the tables of tasks say why",)


def test_the_overview_has_the_papers_means_over_the_same_tasks():
    rows = [made_row("dope/hopper-medium"), made_row("dope/hopper-random")]
    lines = {line.label: line for line in make_overview(rows, "dope").blocks[0].lines}
    assert lines["VLBM, published"].cells[0].mean == pytest.approx((0.7 + 0.77) / 2)
    assert not lines["VLBM, published"].cells[0].best
