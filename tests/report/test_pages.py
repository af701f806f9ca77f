"""The page: what it says, what it leaves out, and that users' texts stay texts."""

from __future__ import annotations

import csv
import io
import json
import re
import time
from dataclasses import replace
from html.parser import HTMLParser
from urllib.parse import unquote

import numpy as np
import pytest

from pages import ASKED, NAMES, made_comparison, made_estimates, made_evidence
from vlbm.experiments.comparison import single_comparison
from vlbm.report.downloads import make_records
from vlbm.report.findings import make_findings
from vlbm.report.page import make_page, render_page
from vlbm.report.parts import Gallery, Page, Section, Table
from vlbm.report.rendering import render
from vlbm.report.sections.answer import write_answer
from vlbm.report.sections.methods import agreement_table
from vlbm.report.sections.ranking import ranking_section
from vlbm.results.estimate import Estimate
from vlbm.results.estimates import Estimates, pool_seeds

EVIL = "<script>alert(1)</script>"
VOID = {"meta", "link", "br"}


class Reader(HTMLParser):
    """Reads a page as a browser would: which elements there are, and that they are closed in order."""

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        assert self.open == [], f"never closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open
        assert self.open.pop() == tag

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def files(page: str) -> dict[str, str]:
    """The downloads of a page."""
    links = [link for link in Reader(page).all("a") if "download" in link]
    return {link["download"]: unquote(link["href"].partition(",")[2]) for link in links}


def test_what_the_method_does_not_know_is_blank():
    blind = tuple(
        replace(row, returns=None, length=None, details={}, model_values=()) for row in made_estimates()
    )
    estimates = replace(made_estimates(method="fqe"), rows=blind)
    ranking = ranking_section(make_findings(single_comparison(estimates))).blocks[0]
    assert not {"cvar", "length"} & {column.key for column in ranking.columns}
    page = render_page(single_comparison(estimates))
    assert "half of the returns" not in page
    record = json.loads(files(page)["estimates.json"])["records"][0]
    assert record["cvar_0.1"] is record["length"] is record["quantile_0.5"] is None
    mixed = replace(estimates, rows=(*blind[:2], made_estimates()[2]))
    ranking = ranking_section(make_findings(single_comparison(mixed))).blocks[0]
    lengths = [row.cells[[column.key for column in ranking.columns].index("length")] for row in ranking.rows]
    assert [cell.text for cell in lengths] == ["100", "\N{EN DASH}", "\N{EN DASH}"]


def test_what_a_command_read_is_not_called_in_memory():
    nameless = {"vlbm": (replace(made_estimates(), data={}),)}
    typed = replace(made_comparison(), task=None, estimates=nameless)
    assert "in memory" not in render_page(typed)
    assert "in memory" in render_page(replace(typed, command=None))


def test_columns_give_their_names_to_charts_and_spaces():
    made = made_comparison()
    names = tuple(f"sensor {index} <b>" for index in range(made.logged.observation_size))
    named = replace(made.logged, observation_names=names, action_names=("torque",))
    page = render_page(replace(made, logged=named))
    assert "sensor 1 &lt;b&gt;</h3>" in page
    assert ": sensor 0 &lt;b&gt;, sensor 1" in page
    assert ": torque" in page
    assert "Observation 1" not in page
    assert "Observation 1" in render_page(made)


def test_a_single_point_of_training_is_no_curve():
    made = made_comparison()
    found = made.evidence["vlbm"]
    single = replace(found.model, histories=tuple(history[:1] for history in found.model.histories))
    assert "training step" in render_page(made)
    assert "training step" not in render_page(replace(made, evidence={"vlbm": replace(found, model=single)}))


def test_nothing_names_a_version_that_no_index_has():
    page = render_page(made_comparison())
    assert "pip install vlbm==" not in page
    assert "installed from a clone" in page


SAMPLED = replace(ASKED, actions="sample")


def with_sampled(*, first: bool = False):
    """A comparison whose wpdis answers for sampled actions, though mean ones were asked for."""
    made = made_comparison()
    weighed = {"wpdis": (made_estimates(method="wpdis", shift=3.0, weighed=True, estimand=SAMPLED),)}
    rest = {"vlbm": made.estimates["vlbm"]}
    return replace(made, estimates={**weighed, **rest} if first else {**rest, **weighed})


def test_a_page_says_what_is_estimated_before_anything_else():
    page = render_page(made_comparison())
    assert page.index(f"Estimated: {ASKED}.") < page.index("<section")
    assert f"Requested: {ASKED}." in page


def test_a_method_that_answers_for_something_else_is_marked_and_kept_from_the_truth():
    page = make_page(with_sampled())
    blocks = {section.name: section.blocks for section in page.sections}
    prose, _, dots, agreement = blocks["methods"][:4]
    assert "Believe vlbm most: it alone answers what was asked." in prose.paragraphs
    assert prose.paragraphs[1].startswith("wpdis estimates another quantity")
    assert prose.paragraphs[1].endswith(f"{SAMPLED}.")
    assert [label for _, label in dots.legend] == ["vlbm", "wpdis (sampled)"]
    assert agreement.headings == ("agreement", "vlbm", "wpdis (sampled)")
    scores, gallery = blocks["truth"]
    assert [row[0] for row in scores.rows] == ["vlbm", "wpdis (sampled)"]
    assert scores.rows[1][1:] == ("", "", "")
    assert all(scores.rows[0])
    assert not any("wpdis" in row[0] for row in gallery.charts[0].table.rows)
    assert [label for _, label in gallery.charts[0].legend] == ["vlbm"]
    found = {record["method"]: record for record in make_records(make_findings(with_sampled()))}
    assert found["vlbm"]["truth"] is not None
    assert found["wpdis"]["truth"] is None
    assert found["wpdis"]["estimand"] == str(SAMPLED)


def test_the_first_method_that_answers_what_was_asked_makes_the_page():
    findings = make_findings(with_sampled(first=True))
    assert findings.method == "vlbm"
    assert "rank the policies much alike" in write_answer(findings)[-1]


def test_where_no_method_answers_what_was_asked_the_truth_is_left_out():
    made = with_sampled()
    page = render_page(replace(made, estimates={"wpdis": made.estimates["wpdis"]}))
    assert f"Estimated: {SAMPLED}." in page
    assert "truth" not in [section["id"] for section in Reader(page).all("section")]
    assert "The true value, known for this task" not in page


def test_returns_that_were_cut_off_are_not_held_against_values_without_a_time_limit():
    endless = replace(ASKED, horizon=None)
    made = replace(
        made_comparison(methods=1),
        estimand=endless,
        estimates={"fqe": (made_estimates(method="fqe", estimand=endless),)},
    )
    assert make_findings(made).above is not None
    truncated = make_findings(replace(made, logged=replace(made.logged, truncated=5)))
    assert truncated.above is None


def test_a_page_is_one_whole_document_with_every_section():
    page = render_page(made_comparison())
    reader = Reader(page)
    assert page.startswith("<!doctype html>")
    assert [section["id"] for section in reader.all("section")] == [
        "ranking", "methods", "truth", "model", "provenance",
    ]  # fmt: skip
    ids = [attributes["id"] for _, attributes in reader.elements if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_a_page_fetches_nothing_and_runs_only_its_own_script():
    page = render_page(made_comparison())
    reader = Reader(page)
    for _, attributes in reader.elements:
        for name in ("src", "href", "action", "poster", "srcset"):
            address = attributes.get(name)
            assert address is None or address.startswith(("#", "data:"))
    assert len(reader.all("script")) == 1
    assert "url(" not in page
    (policy,) = [meta["content"] for meta in reader.all("meta") if "http-equiv" in meta]
    assert policy.startswith("default-src 'none'")
    assert re.search(r"script-src 'sha256-[\w+/]+='", policy)


def test_users_texts_stay_texts_wherever_they_are():
    names = (EVIL, '"><img src=x onerror=alert(2)>', "' onclick='alert(3)", "{{ 7 * 7 }}", "a&b" * 60)
    comparison = made_comparison(names)
    comparison = replace(
        comparison,
        failures={EVIL: EVIL},
        task=EVIL,
        command=f"vlbm {EVIL}",
        logged=replace(comparison.logged, warnings=(EVIL,), notes=(EVIL,)),
        estimates={EVIL: comparison.estimates["vlbm"], **comparison.estimates},
    )
    reader = Reader(render_page(comparison))
    assert len(reader.all("script")) == 1
    assert reader.all("img") == []
    for _, attributes in reader.elements:
        assert not any(name.startswith("on") for name in attributes)
    assert "49" not in "".join(title for title in (link.get("title") or "" for link in reader.all("button")))


def test_every_chart_has_its_numbers_as_a_table_under_it():
    page = render_page(made_comparison())
    assert page.count("<figure") == page.count('<details class="numbers">')


def test_every_picture_and_every_button_has_a_name():
    reader = Reader(render_page(made_comparison()))
    for picture in reader.all("svg"):
        assert picture.get("class") == "spot" or picture.get("aria-label")
    controls = {button["aria-controls"] for button in reader.all("button") if "aria-controls" in button}
    assert controls <= {attributes.get("id") for _, attributes in reader.elements}


def test_the_files_hold_the_same_numbers():
    kept = files(render_page(made_comparison()))
    rows = list(csv.DictReader(io.StringIO(kept["estimates.csv"])))
    found = json.loads(kept["estimates.json"])["records"]
    assert len(rows) == len(found) == 2 * len(NAMES)
    for row, record in zip(rows, found, strict=True):
        assert list(row) == list(record)
        for name, value in record.items():
            assert row[name] == ("" if value is None else str(value))
    assert found[0]["policy"] == "snail"
    assert found[0]["trust"] == "doubtful"


def test_records_of_all_methods_have_their_verdicts():
    other = [
        record for record in make_records(make_findings(made_comparison())) if record["method"] == "wpdis"
    ]
    # What vlbm imagined outside the log speaks to wpdis too.
    assert [record["trust"] for record in other] == ["doubtful", "caution", "sound"]
    assert {record["effective_sample_size"] for record in other} == {12.0, 13.0, 14.0}


def test_estimates_alone_make_a_page_of_what_is_known():
    page = render_page(single_comparison(made_estimates()))
    assert [section["id"] for section in Reader(page).all("section")] == ["ranking", "provenance"]
    assert "behaviour policy" not in page


def test_a_method_that_imagines_nothing_borrows_what_another_imagined():
    comparison = made_comparison()
    turned = dict(reversed(comparison.estimates.items()))
    findings = make_findings(replace(comparison, estimates=turned))
    assert (findings.method, findings.rollout_method) == ("wpdis", "vlbm")
    page = render_page(findings.comparison)
    assert "imagined by vlbm" in page
    assert "logged, weighted" in page
    assert findings.verdicts[2].level == "doubtful"


def constant(names: list[str], returns: np.ndarray) -> Estimates:
    value = float(returns.mean())
    rows = tuple(Estimate(name, value, 0.0, value, value, returns, 1.0) for name in names)
    return Estimates(rows, "vlbm", 0, ASKED, {}, {})


@pytest.mark.parametrize(
    "estimates",
    [
        constant(["alone"], np.full(5, 3.0)),
        constant(["same", "twin"], np.zeros(4)),
        constant(["one return"], np.ones(1)),
        constant(["huge", "also huge"], np.array([1e30, -1e30])),
        constant(["tiny"], np.array([1e-30, 2e-30])),
    ],
    ids=lambda estimates: estimates[0].policy,
)
def test_odd_numbers_do_not_break_the_page(estimates):
    truth = {row.policy: 1.0 for row in estimates}
    evidence = made_evidence([row.policy for row in estimates], horizon=1, dimensions=1)
    page = render_page(single_comparison(estimates, truth=truth, evidence=evidence))
    Reader(page)
    assert not re.search(r' (points|d|x\d?|y\d?|cx|cy|width|height)="[^"]*(nan|inf)', page)
    json.loads(files(page)["estimates.json"], parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_a_hundred_policies_with_long_names_fit_in_six_megabytes():
    names = [f"{index:03d}-" + "x" * 196 for index in range(100)]
    page = render_page(made_comparison(names, dimensions=24))
    Reader(page)
    assert len(page.encode()) < 6e6


def test_eleven_policies_are_written_within_seconds():
    comparison = made_comparison([f"policy_{index}" for index in range(11)], dimensions=24, points=600)
    began = time.process_time()
    page = render_page(comparison)
    assert time.process_time() - began < 5
    assert len(page.encode()) < 6e6


def test_seeds_are_pooled_with_the_spread_between_them():
    both = pool_seeds([made_estimates(), made_estimates(seed=1, shift=4.0)])
    assert both.values.tolist() == [12.0, 22.0, 32.0]
    # Half a width of 4 within a seed, and 1.96 deviations of 2.83 between the seeds.
    assert both[0].upper - 12.0 == pytest.approx(np.sqrt(16 + 1.959964**2 * 8))
    assert len(both[0].returns) == 100


def test_a_page_for_a_whole_benchmark_can_be_made_of_the_parts():
    agreement = agreement_table(["vlbm", "fqe"], [[1.0, -0.5], [-0.5, 1.0]])
    scores = Table(("task", "vlbm", "fqe"), (("hopper", "0.90", "0.40"),), "Rank correlation.", ((0.9, 0.4),))
    chart = next(
        block
        for section in make_page(made_comparison()).sections
        if section.name == "truth"
        for block in section.blocks
        if isinstance(block, Gallery)
    )
    page = Page(
        "Benchmark",
        "Benchmark",
        ("vlbm ranks best.",),
        (Section("scores", "Scores", (scores, agreement, chart)),),
    )
    reader = Reader(render(page))
    assert [section["id"] for section in reader.all("section")] == ["scores"]
    assert [cell["style"] for cell in reader.all("td") if "shaded" in (cell.get("class") or "")][:2] == [
        "--shade: 0.90", "--shade: 0.40",
    ]  # fmt: skip
