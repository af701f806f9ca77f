"""Evidence that is collected when a page is wanted: Python's page is the command line's."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_collect import POLICIES, Guess, Walking, walker

from vlbm.estimators.fqe import FQE
from vlbm.experiments.comparison import single_comparison
from vlbm.experiments.evidence.collect import DiagnosticsCollector
from vlbm.experiments.evidence.complete import add_evidence
from vlbm.report.page import render_page
from vlbm.results.diagnostics.support import Support
from vlbm.results.estimates import Estimates
from walks import walks

ASKED = {"discount": 0.9, "horizon": 12}


@pytest.fixture(scope="module")
def logs():
    return walks(40, 12)


@pytest.fixture(scope="module")
def evaluator(logs):
    return replace(walker(logs), log=logs, support=Support.of(logs))


def test_the_page_of_estimates_alone_is_that_of_the_command_line(logs, evaluator, tmp_path):
    collector = DiagnosticsCollector.of(logs, **ASKED)
    estimates, evidence = collector.evaluate_with_diagnostics(evaluator, POLICIES, episodes=6, backtest=True)
    whole = single_comparison(estimates, evidence=evidence, logged=collector.summary)
    estimates.report(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text() == render_page(whole)


def test_what_was_collected_is_not_collected_again(evaluator):
    comparison = add_evidence(single_comparison(evaluator.evaluate(POLICIES, **ASKED, episodes=6)))
    assert comparison.logged is not None
    assert add_evidence(comparison) is comparison


def test_a_method_without_a_world_is_not_trained_again_for_its_page(logs):
    guess = Guess(settings=Walking(method="guess"), seed=0, data={}, log=logs)
    comparison = add_evidence(single_comparison(guess.evaluate(POLICIES, **ASKED)))
    assert comparison.logged is not None
    assert comparison.evidence == {}


def test_what_is_fitted_knows_its_log(logs):
    assert FQE().fit(logs).log is logs


def test_estimates_from_disk_are_shown_as_they_are(evaluator, tmp_path):
    evaluator.evaluate(POLICIES, **ASKED, episodes=6).save(tmp_path / "run.safetensors", identity={})
    loaded = single_comparison(Estimates.load(tmp_path / "run.safetensors"))
    assert add_evidence(loaded) is loaded


def test_verdicts_are_the_same_before_and_after_a_page_and_on_disk(logs, evaluator, tmp_path):
    estimates = evaluator.evaluate(POLICIES, **ASKED, episodes=6)
    printed = [line for line in str(estimates).splitlines() if line.startswith(("doubtful", "caution"))]
    assert printed[0].startswith("doubtful: flees: It leaves the logged data most of the time")
    estimates.save(tmp_path / "run.safetensors", identity={})
    again = str(Estimates.load(tmp_path / "run.safetensors")).splitlines()
    assert [line for line in again if line.startswith(("doubtful", "caution"))] == printed
    assert printed
