"""The question that the command line asks: the same of all methods, and said wherever numbers are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from systems import linear_logs
from test_cli import TINY, folder, run
from vlbm.cli.compare import _drop_other_estimands
from vlbm.data.readers import save_npz
from vlbm.estimand import Estimand
from vlbm.estimators.base import Estimator
from vlbm.estimators.registry import make_estimator

__all__ = ["folder"]  # a fixture

VLBM = [f"vlbm.{setting}" for setting in TINY]
FQE = [f"fqe.{setting}" for setting in ("units=8", "rounds=1", "steps=5")]
MEAN = "return of the first 15 steps, discount 0.995, policies act by their mean"
SAMPLED = "return of the first 15 steps, discount 0.995, policies sample their actions"


@pytest.fixture
def untrained(monkeypatch):
    """Nothing may be fitted."""

    def fail(*_, **__):
        raise AssertionError("something was fitted")

    monkeypatch.setattr(Estimator, "fit", fail)


def shown(capsys) -> str:
    return " ".join(capsys.readouterr().out.split())


def test_methods_nobody_named_are_left_out_where_they_answer_for_something_else(folder, capsys):
    assert run("compare", "logs.npz", "first.npz", "--set", *VLBM, "--json", "out.json", "--no-backtest",
               "--quiet") == 0  # fmt: skip
    result = json.loads(Path("out.json").read_text())
    assert list(result["methods"]) == ["vlbm"]
    assert SAMPLED in result["failures"]["wpdis"]
    text = shown(capsys)
    assert f"Estimated: {MEAN}" in text
    assert "wpdis was left out: it would estimate another quantity" in text


def test_methods_that_were_named_stay_and_are_marked(folder, capsys):
    assert run("compare", "logs.npz", "first.npz", "second.npz", "--methods", "wpdis,fqe", "--set", *FQE,
               "wpdis.clone_steps=5", "--json", "out.json", "--report", "page.html", "--no-backtest",
               "--quiet") == 0  # fmt: skip
    result = json.loads(Path("out.json").read_text())
    assert result["estimand"]["text"] == result["methods"]["fqe"]["estimand"]["text"] == MEAN
    assert result["methods"]["wpdis"]["estimand"]["text"] == SAMPLED
    assert result["failures"] == {}
    text = shown(capsys)
    assert "wpdis (sampled)" in text
    assert "warning: wpdis: it answers for sampled actions, though mean ones were asked for" in text
    page = Path("page.html").read_text()
    assert f"Estimated: {MEAN}." in page
    assert "wpdis (sampled)" in page


def test_nothing_is_left_out_where_all_answer_what_is_asked():
    estimators = {name: make_estimator(name) for name in ("vlbm", "wpdis")}
    for logs, actions in ((linear_logs(), "sample"), (linear_logs(n_actions=3), "mean")):
        assert _drop_other_estimands(estimators, Estimand(0.9, 15, actions), logs) == {}
    assert list(estimators) == ["vlbm", "wpdis"]
    assert list(_drop_other_estimands(estimators, Estimand(0.9, 15, "mean"), linear_logs())) == ["wpdis"]
    assert list(estimators) == ["vlbm"]


@pytest.mark.parametrize("word", ["inf", "endless"])
def test_the_endless_question_can_be_asked(word, folder, capsys):
    settings = [setting.removeprefix("fqe.") for setting in FQE]
    assert run("evaluate", "logs.npz", "first.npz", "--method", "fqe", "--set", *settings, "--horizon", word,
               "--discount", 0.9, "--json", "out.json", "--report", "page.html", "--quiet") == 0  # fmt: skip
    found = json.loads(Path("out.json").read_text())
    text = "return without a time limit, discount 0.9, policies act by their mean"
    assert found["estimand"] == {"discount": 0.9, "horizon": None, "actions": "mean", "text": text}
    assert f"Estimated: {text}" in shown(capsys)
    assert f"Estimated: {text}." in Path("page.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["evaluate", "--horizon", "inf"], "vlbm cannot answer without a time limit; give a horizon"),
        (["evaluate", "--method", "wpdis", "--horizon", "inf"], "or use fqe, dice or vpm"),
        (["compare", "--horizon", "endless"], "vlbm cannot answer without a time limit"),
        (["compare", "--methods", "dr", "--horizon", "inf"], "dr cannot answer without a time limit"),
        (
            ["evaluate", "--method", "fqe", "--horizon", "inf", "--discount", "1"],
            "discount 1: without a horizon",
        ),
        (["evaluate", "--horizon", "soon"], "--horizon soon: give a whole number of steps, or inf"),
        (["compare", "--horizon", "2.5"], "--horizon 2.5: give a whole number of steps, or inf"),
    ],
)
def test_what_cannot_be_answered_is_said_before_anything_is_fitted(
    arguments, words, folder, untrained, capsys
):
    command, *options = arguments
    assert run(command, "logs.npz", "first.npz", *options, "--quiet") == 2
    message = capsys.readouterr().err
    assert words in message
    assert message.count("\n") == 1


def test_a_model_and_the_data_beside_it_are_asked_for_the_same_number_of_steps(folder):
    assert run("fit", "logs.npz", "--save", "model", "--set", *TINY, "--quiet") == 0
    save_npz(linear_logs(lengths=(6, 6, 6, 6)), "short.npz")
    assert run("evaluate", "short.npz", "first.npz", "--model", "model", "--report", "page.html",
               "--json", "out.json", "--episodes", 3, "--quiet") == 0  # fmt: skip
    assert json.loads(Path("out.json").read_text())["estimand"]["text"] == MEAN
    assert "truncated before the horizon" in Path("page.html").read_text()
