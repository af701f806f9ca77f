"""What a page answers: who is best by which method, which method to believe, and what the log itself says."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from pages import made_comparison, made_estimates
from vlbm.experiments.comparison import single_comparison
from vlbm.report.comparisons import as_text, print_comparison
from vlbm.report.findings import make_findings
from vlbm.report.page import render_page
from vlbm.report.sections.answer import write_answer
from vlbm.report.sections.ranking import ranking_section
from vlbm.report.tables import format_value, print_estimates
from vlbm.results.backtest import Backtest
from vlbm.results.behaviour import BehaviourRow
from vlbm.results.diagnostics.trust import OUTSIDE
from vlbm.results.diagnostics.verdicts import judge, list_objections


def test_the_answer_names_the_best_its_interval_and_who_leaves_the_data():
    # snail is best with 30 against a log of 15 and is outside for 90 % of its steps; hare for 45 %.
    first, second, *_ = (
        text.striptags().replace("\N{NO-BREAK SPACE}", " ")
        for text in write_answer(make_findings(made_comparison()))
    )
    assert first == (
        "snail is estimated best of 3 by vlbm: 30.00, 95 % interval 26.00 to 34.00; it beats the behaviour "
        "policy with probability above 0.99; one candidate leaves the logged data most of the time."
    )
    assert second.startswith("Do not rely on it: it leaves the logged data most of the time: 90 %")


def test_q_stays_q_in_the_answer():
    rows = tuple(replace(row, warnings=("Q has not settled",), details={}) for row in made_estimates())
    sentences = write_answer(make_findings(single_comparison(replace(made_estimates(), rows=rows))))
    assert "With caution: Q has not settled." in [text.striptags() for text in sentences]


def test_an_unsettled_first_place_is_said():
    rows = tuple(
        replace(row, value=10.0 + 0.1 * index, lower=5.0, upper=15.0)
        for index, row in enumerate(made_estimates())
    )
    sentences = write_answer(make_findings(single_comparison(replace(made_estimates(), rows=rows))))
    assert any(
        "The first place is not settled: snail is best with probability 0.3" in text for text in sentences
    )


def test_methods_that_disagree_are_named():
    comparison = made_comparison()
    backwards = made_estimates(method="wpdis")
    rows = tuple(replace(row, value=-row.value) for row in backwards)
    comparison = replace(
        comparison, estimates={**comparison.estimates, "wpdis": (replace(backwards, rows=rows),)}
    )
    last = write_answer(make_findings(comparison))[-1]
    assert last.striptags() == (
        "The methods disagree: wpdis ranks otherwise (agreement \N{MINUS SIGN}1.00) and puts tortoise first. "
        "Their levels differ too: the values of wpdis lie 40.00 lower on average, and all values lie within "
        "60.00."
    )


def test_methods_that_rank_alike_but_differ_in_level_are_not_said_to_agree():
    comparison = made_comparison()
    low = made_estimates(method="wpdis", shift=-40.0, weighed=True)
    last = write_answer(
        make_findings(replace(comparison, estimates={**comparison.estimates, "wpdis": (low,)}))
    )
    assert last[-1] == (
        "The other methods rank the policies much alike (agreement at least 1.00), but their levels differ: "
        "the values of wpdis lie 40.00 lower on average, and all values lie within 60.00."
    )
    near = write_answer(make_findings(made_comparison()))[-1]
    assert near == "The other methods rank the policies much alike (agreement at least 1.00)."


def test_the_page_is_about_the_method_with_the_fewest_doubts_and_says_why():
    comparison = made_comparison()
    weak = made_estimates(method="wpdis", weighed=True)
    rows = tuple(replace(row, details={"effective_sample_size": 1.5}) for row in weak)
    weak_first = {"wpdis": (replace(weak, rows=rows),), "vlbm": comparison.estimates["vlbm"]}
    findings = make_findings(replace(comparison, estimates=weak_first))
    assert findings.method == "vlbm"
    answer = write_answer(findings)
    assert "by vlbm" in answer[0]
    assert (
        "Of the methods, believe vlbm most: it has the fewest doubtful estimates (wpdis 3, vlbm 1 of 3)."
        in answer
    )


def test_where_every_estimate_is_doubtful_no_method_is_recommended():
    comparison = made_comparison()
    rows = tuple(replace(row, details={OUTSIDE: 0.8}) for row in made_estimates())
    doubtful = {**comparison.estimates, "vlbm": (replace(made_estimates(), rows=rows),)}
    answer = write_answer(make_findings(replace(comparison, estimates=doubtful)))
    assert any(text.startswith("No method can be relied on here") for text in answer)


def test_a_rival_that_is_likelier_to_be_best_for_its_wide_interval_is_explained():
    low, middle, high = made_estimates()
    rows = (
        replace(low, value=29.0, lower=-51.0, upper=109.0),
        replace(middle, value=29.9, lower=26.0, upper=34.0),
        replace(high, lower=26.0, upper=34.0),
    )
    findings = make_findings(single_comparison(replace(made_estimates(), rows=rows)))
    (text,) = (text for text in write_answer(findings) if "not settled" in text)
    assert text.startswith("The first place is not settled: snail is best with probability 0.2")
    assert "tortoise with 0.4" in text
    assert "though its value is only number 3: its interval is wide" in text


def with_log(comparison):
    """The same with what the log says of itself."""
    first = comparison.estimates["vlbm"][0]
    held = replace(
        first,
        behaviour=BehaviourRow(15.0, 0.5, lower=14.0, upper=16.0, episodes=20),
        backtest=Backtest(
            episodes=4,
            horizon=10,
            estimated=14.6,
            logged=15.0,
            standard_error=0.5,
            error=0.4,
            error_share=0.03,
        ),
    )
    rest = comparison.estimates["vlbm"][1:]
    return replace(comparison, estimates={**comparison.estimates, "vlbm": (held, *rest)})


def test_the_behaviour_policy_is_a_row_among_the_estimates_that_says_it_was_logged():
    ranking, pairs = ranking_section(make_findings(with_log(made_comparison()))).blocks
    assert [row.name for row in ranking.rows] == ["snail", "hare", "behaviour (logged)", "tortoise"]
    cells = dict(zip((column.key for column in ranking.columns), ranking.rows[2].cells, strict=True))
    assert (cells["value"].text, cells["trust"].text) == ("15.00", "logged, not estimated")
    assert cells["best"].text == cells["cvar"].text == "\N{EN DASH}"
    assert [row[0] for row in pairs.rows] == ["snail", "hare", "tortoise"]


def test_the_behaviour_policy_is_a_row_of_both_tables_on_the_console():
    made = with_log(made_comparison())
    for text in (as_text(made), str(made.estimates["vlbm"][0])):
        lines = [line for line in text.partition("behaviour (logged): mean")[0].splitlines() if line.strip()]
        named = [
            name for line in lines for name in ("snail", "hare", "behaviour", "tortoise") if name in line
        ]
        assert named[:4] == ["snail", "hare", "behaviour", "tortoise"]
    (row,) = (line for line in as_text(made).splitlines() if line.strip().startswith("behaviour (logged)  "))
    assert row.split()[2:] == ["15.000", "±", "1.000"] * 2  # under every method


def test_the_page_says_how_far_it_was_off_on_the_held_out_log():
    sentence = (
        "On your own held-out log, vlbm was off by 3 % of the spread of logged returns: it said 14.60, and 4 "
        "logged episodes earned 15.00 (standard error of the difference 0.50)."
    )
    comparison = with_log(made_comparison())
    assert sentence in render_page(comparison).replace("\N{NO-BREAK SPACE}", " ")
    assert sentence in " ".join(as_text(comparison).replace("\N{NO-BREAK SPACE}", " ").split())


def test_every_two_policies_are_compared():
    _, pairs = ranking_section(make_findings(made_comparison())).blocks
    assert pairs.headings == ("P(row > column)", "snail", "hare", "tortoise")
    assert pairs.rows[0] == ("snail", "\N{EN DASH}", "> 0.99", "> 0.99")
    assert pairs.rows[2] == ("tortoise", "< 0.01", "< 0.01", "\N{EN DASH}")


def test_the_console_says_once_what_speaks_against_several_methods_and_explains_its_marks():
    text = " ".join(as_text(made_comparison()).split())
    assert "doubtful: vlbm, wpdis: snail: It leaves the logged data most of the time: 90 %" in text
    assert text.count("leaves the logged data most of the time") == 1
    assert "value ± half the width of its 95 % interval; ! caution, !! doubtful: reasons below" in text
    assert "!! 30.000 ± 4.000" in text


def test_many_methods_in_a_narrow_terminal_keep_their_names_and_numbers():
    comparison = made_comparison()
    runs = comparison.estimates["vlbm"]
    many = replace(comparison, estimates={name: runs for name in ("vlbm", "ff", "ar", "fqe", "dice", "dr")})
    console = Console(file=io.StringIO(), width=80, color_system=None)
    print_comparison(many, console)
    text = console.file.getvalue()
    values = text.partition("value ± half")[0]
    assert values.count("tortoise") == 2
    assert values.count("30.000 ± 4.000") == 6
    assert "…" not in values


@pytest.mark.parametrize(("width", "drawn"), [(120, True), (60, False)])
def test_pictures_of_intervals_are_explained_where_they_are_drawn(width, drawn):
    console = Console(file=io.StringIO(), width=width, color_system=None)
    print_estimates(made_estimates(), console, truth={"hare": 1.0, "tortoise": 2.0, "snail": 3.0})
    shown = console.file.getvalue()
    assert ("━●━:" in shown) == ("◆:" in shown) == drawn
    assert "lower, upper" in shown


def test_what_rounds_to_zero_has_no_sign():
    assert (format_value(-0.04, 1), format_value(-0.06, 1)) == ("0.0", "-0.1")


def test_print_and_notebooks_caution_as_the_page_does():
    estimates = made_estimates()
    page = list_objections(judge(estimates))
    assert page[0][1].startswith("snail: It leaves the logged data most of the time")
    for shown in (str(estimates), estimates._repr_html_()):
        for level, text in page:
            assert f"{level}: {text}" in " ".join(shown.split())
        assert "se: standard error" in shown
