"""Runs on disk, and the pages made of them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from pages import made_comparison, made_estimates
from vlbm.cli.report import make_page
from vlbm.errors import InputError
from vlbm.experiments.comparison import single_comparison
from vlbm.report.page import render_page
from vlbm.report.saved import load_run, save_run
from vlbm.storage import load_arrays, read_information, save_arrays


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
    with pytest.raises(InputError, match=r"run\.json: is damaged .*'policies' is missing"):
        load_run(tmp_path)


def change(folder, **entries):
    path = folder / "evidence" / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **entries}))


@pytest.mark.parametrize("absolute", [False, True])
@pytest.mark.parametrize("entry", ["methods", "evidence"])
def test_a_run_names_no_file_outside_its_folder(tmp_path, absolute, entry):
    save_run(made_comparison(), tmp_path / "other")
    save_run(made_comparison(), tmp_path / "run")
    place = tmp_path / "other" / "evidence" if absolute else Path("..", "..", "other", "evidence")
    if entry == "methods":
        change(tmp_path / "run", methods={"vlbm": [str(place / "vlbm-0.safetensors")]}, evidence=[])
    else:
        change(tmp_path / "run", evidence=[str(place / "vlbm")])
    with pytest.raises(InputError, match=r"run/evidence/run\.json: names the file '.*', which is outside"):
        load_run(tmp_path / "run")


@pytest.mark.parametrize("name", ["run.json", "vlbm-0.safetensors", "vlbm.safetensors", "logged.safetensors"])
def test_no_file_of_a_run_is_a_link_out_of_its_folder(tmp_path, name):
    save_run(made_comparison(), tmp_path / "run")
    path = tmp_path / "run" / "evidence" / name
    path.rename(tmp_path / name)
    path.symlink_to(tmp_path / name)
    with pytest.raises(InputError, match="leads out of the folder"):
        load_run(tmp_path / "run")


@pytest.mark.parametrize("name", ["run.json", "vlbm-0.safetensors", "logged.safetensors"])
def test_a_run_does_not_wait_for_a_writer(tmp_path, name):
    save_run(made_comparison(), tmp_path)
    path = tmp_path / "evidence" / name
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(InputError, match="is a FIFO, not a file"):
        load_run(tmp_path)


@pytest.mark.parametrize(
    "entries",
    [
        {"methods": {}},
        {"methods": {"vlbm": []}},
        {"methods": ["vlbm"]},
        {"policies": ["tortoise"]},
        {"policies": "hare"},
        {"estimand": {"discount": "high", "horizon": 10, "actions": "mean"}},
        {"estimand": None},
        {"truth": {"hare": 1.0}},
        {"truth": {"hare": "much"}},
        {"failures": {"fqe": 3}},
        {"logged": "yes"},
        {"task": 3},
        {"evidence": ["fqe"]},
        {"evidence": ["vlbm-0"]},
    ],
    ids=str,
)
def test_a_run_of_the_wrong_types_or_names_is_one_clear_error(tmp_path, entries):
    save_run(made_comparison(), tmp_path)
    change(tmp_path, **entries)
    with pytest.raises(InputError, match=r"evidence/(run\.json|fqe\.safetensors|vlbm-0\.safetensors): "):
        load_run(tmp_path)


@pytest.mark.parametrize(
    "returns", [[1 << 62, 50, 50], [-1, 50, 50], ["many", 50, 50], [50], 3, None], ids=str
)
def test_estimates_claim_no_more_returns_than_there_are(tmp_path, returns):
    save_run(made_comparison(), tmp_path)
    path = tmp_path / "evidence" / "vlbm-0.safetensors"
    save_arrays(path, load_arrays(path), information={**read_information(path), "returns": returns})
    with pytest.raises(InputError, match=r"vlbm-0\.safetensors: .*"):
        load_run(tmp_path)


def test_what_makes_no_page_is_one_clear_error(tmp_path):
    def fail(run):
        raise ValueError("no page")

    save_run(made_comparison(), tmp_path)
    with pytest.raises(InputError, match=r"evidence: is damaged .*no page.*; run evaluate or compare"):
        make_page(tmp_path, fail)
