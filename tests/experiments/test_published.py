"""The paper's published numbers: shipped whole, and as the paper has them."""

from __future__ import annotations

import csv

from vlbm.experiments.published import published_tasks, read_published
from vlbm.suites.dope import list_names


def test_all_numbers_of_the_papers_six_tables_are_there():
    published = read_published()
    assert len(published) == 900
    assert sum(one.best for one in published.values()) == 218
    assert published["rank_correlation", "dope/ant-expert", "vlbm"] == (0.79, 0.01, True)
    assert published["dope_regret", "dope/relocate-expert", "fqe"] == (1.0, 0.06, False)
    assert published["absolute_error", "dope/hammer-human", "wpdis"].mean == 7352


def test_the_papers_tasks_are_the_dope_suites():
    assert set(published_tasks()) == set(list_names())


def test_the_shipped_numbers_are_those_that_were_read_off_the_paper(shared):
    metrics = {"regret_at_1": "dope_regret", "mae": "absolute_error"}
    published = read_published()
    path = shared / "paper" / "results.csv"
    with path.open() as file:
        for row in csv.DictReader(file):
            method = {"ar_ensemble": "ar", "is": "wpdis"}.get(row["method"], row["method"]).replace("_", "-")
            task = f"dope/{row['env']}-{row['dataset']}"
            found = published[metrics.get(row["metric"], row["metric"]), task, method]
            assert found == (float(row["mean"]), float(row["std"]), row["best"] == "1")
