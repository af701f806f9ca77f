"""Runs on disk, and the pages made of them."""

from __future__ import annotations

import pytest

from pages import made_comparison, made_estimates
from vlbm.errors import InputError
from vlbm.experiments.comparison import single_comparison
from vlbm.report.page import render_page
from vlbm.report.saved import load_run, save_run


@pytest.mark.parametrize(
    "make", [made_comparison, lambda: single_comparison(made_estimates())], ids=["all", "estimates"]
)
def test_a_saved_run_makes_the_same_page(make, tmp_path):
    comparison = make()
    save_run(comparison, tmp_path)
    assert render_page(load_run(tmp_path)) == render_page(comparison)


def test_a_second_run_replaces_the_first(tmp_path):
    save_run(single_comparison(made_estimates()), tmp_path)
    save_run(single_comparison(made_estimates(shift=5.0)), tmp_path)
    assert load_run(tmp_path).values("vlbm").tolist() == [15.0, 25.0, 35.0]


def test_a_folder_without_a_run_says_how_to_make_one(tmp_path):
    with pytest.raises(InputError, match=r"holds no saved run.*vlbm evaluate \.\.\. --save DIR"):
        load_run(tmp_path)


def test_a_torn_run_is_one_clear_error(tmp_path):
    save_run(made_comparison(), tmp_path)
    (tmp_path / "evidence" / "run.json").write_text('{"methods": {}}')
    with pytest.raises(InputError, match=r"run\.json: cannot be read"):
        load_run(tmp_path)
