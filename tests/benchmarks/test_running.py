"""The runner turns whatever a benchmark does into rows of a table."""

from __future__ import annotations

import json

import pytest
from goals import BENCHMARKS, Benchmark, Goal, at_least, at_most
from growth import fitted
from running import merged, row_of, rows_of, run, show
from telling import told

GOAL = Goal("ratio", "how much faster", at_least(3))


def ran(folder, script: str) -> dict:
    (folder / "one.py").write_text(script)
    return run(Benchmark("one", "one.py", (GOAL,)), place=folder)


def test_the_last_line_of_figures_counts(tmp_path):
    script = "print('{\"ratio\": 1.0}'); print('{\"ratio\": 4.5}'); print('done')"
    assert ran(tmp_path, script)["ratio"] == 4.5


def test_a_benchmark_that_fails_is_a_row_that_says_so(tmp_path):
    figures = ran(tmp_path, "raise SystemExit(3)")
    row = row_of(GOAL, figures)
    assert row["met"] is None
    assert "code 3" in row["why_not"]


def test_a_benchmark_that_is_missing_is_a_row_that_says_so(tmp_path):
    assert run(Benchmark("one", "none.py", (GOAL,)), place=tmp_path) == {"failed": "there is no none.py"}


def test_a_peer_that_is_missing_says_why_in_its_row():
    row = row_of(GOAL, {"ratio": "cannot be installed"})
    assert (row["value"], row["why_not"]) == (None, "cannot be installed")


def test_silence_is_a_failure(tmp_path):
    assert "no figures" in ran(tmp_path, "print('hello')")["failed"]


@pytest.mark.parametrize(("value", "met"), [(2.9, False), (3.0, True), (3.1, True)])
def test_a_bound_is_kept_or_not(value, met):
    assert GOAL.met(value) is met
    assert Goal("seconds", "", at_most(3)).met(value) is (value <= 3)
    assert Goal("seconds", "").met(value) is None


def test_the_table_shows_every_row(tmp_path, capsys):
    rows = [row for each in BENCHMARKS for row in rows_of(each, tmp_path)]
    show(rows)
    assert capsys.readouterr().out.count("not measured yet") == len(rows) >= len(BENCHMARKS)


def test_a_benchmark_may_have_rows_of_its_own(tmp_path):
    row = {"name": "peak", "value": 1.05, "unit": "times", "target": "< 1.1", "met": True}
    script = f"import json, sys; json.dump([{row}], open(sys.argv[2], 'w'))"
    (tmp_path / "one.py").write_text(script)
    benchmark = Benchmark("one", "one.py", ())
    (tmp_path / "one-1.json").write_text(json.dumps(run(benchmark, place=tmp_path)))
    (found,) = rows_of(benchmark, tmp_path)
    assert (found["name"], found["value"], found["must"], found["met"]) == ("peak", 1.05, "< 1.1", True)


def test_figures_need_not_be_the_only_output():
    assert told('begin\n{"a": 1}\n') == {"a": 1}


def test_the_exponent_of_a_power_law_is_found():
    assert fitted([1, 2, 4], [3.0, 12.0, 48.0]) == pytest.approx(2.0)


def test_what_is_measured_now_takes_the_place_of_what_was_and_the_rest_stays():
    def row(benchmark: str, name: str, value: float | None, cores: int = 1) -> dict:
        return {"benchmark": benchmark, "cores": cores, "name": name, "value": value}

    earlier = [row("a", "x", 1.0), row("a", "y", 2.0), row("b", "x", 3.0), row("a", "x", 4.0, cores=2)]
    now = [row("a", "x", 5.0), row("a", "z", 6.0), row("b", "x", None), row("c", "x", 7.0)]
    assert merged(earlier, now) == [now[0], now[1], earlier[2], earlier[3], now[3]]
    assert merged([], now) == [now[0], now[1], now[3]]
