"""Comparisons as tables for the terminal."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from vlbm.report.findings import Findings, make_findings
from vlbm.report.logs import BEHAVIOUR
from vlbm.report.numbers import NOTHING
from vlbm.report.sentences import describe_agreement, describe_choice
from vlbm.report.tables import (
    COLOURS,
    choose_decimals,
    describe_estimand,
    explain_marks,
    format_value,
    list_notes,
    print_backtests,
    print_notes,
)
from vlbm.results.diagnostics.verdicts import MARKS

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from vlbm.experiments.comparison import Comparison

GAP = 3  # characters between columns
TRUE = "true"


def values_tables(findings: Findings, width: int) -> list[Table]:
    """A row for every policy, a column for every method: value and the half width of its interval.

    Several tables where the columns do not fit side by side: names and numbers are never cut.
    """
    names, columns = _list_columns(findings)
    first = max(len(name.plain) for name in names) + GAP
    groups: list[list[tuple[str, list[Text]]]] = []
    left = 0
    for heading, cells in columns:
        size = max(len(heading), *(len(cell.plain) for cell in cells)) + GAP
        if not groups or size > left:
            groups.append([])
            left = width - first
        groups[-1].append((heading, cells))
        left -= size
    tables = []
    for group in groups:
        table = _table("policy")
        for heading, _ in group:
            style = "green" if heading == TRUE else None
            table.add_column(heading, justify="right", no_wrap=True, style=style)
        for name, *row in zip(names, *(cells for _, cells in group), strict=True):
            table.add_row(name, *row)
        tables.append(table)
    return tables


def _list_columns(findings: Findings) -> tuple[list[Text], list[tuple[str, list[Text]]]]:
    """The names of the rows, best policy first, and under every heading their cells."""
    from rich.text import Text

    comparison, behaviour = findings.comparison, findings.behaviour
    values = {method: comparison.values(method) for method in findings.runs}
    digits = choose_decimals([value for column in values.values() for value in column[np.isfinite(column)]])
    best = values[findings.method]
    order: list[int | None] = np.argsort(-best).tolist()  # those without a value come last
    if behaviour is not None:
        order.insert(int((best >= behaviour.value).sum()), None)

    def write(value: float, half: float) -> str:
        return f"{format_value(value, digits)} ± {format_value(half, digits)}"

    def show(method: str, index: int | None) -> Text:
        if index is None:
            assert behaviour is not None  # the same under every method: it was logged, not estimated
            return Text(write(behaviour.value, (behaviour.upper - behaviour.lower) / 2), style="italic")
        policy = comparison.policies[index]
        rows = comparison.rows(method, policy)
        if not rows:
            return Text(NOTHING)
        half = float(np.mean([(row.upper - row.lower) / 2 for row in rows]))
        level = findings.verdicts_by_method[method][policy].level
        # The mark stands in front, so that numbers end below each other.
        return Text(f"{MARKS[level]} {write(values[method][index], half)}".strip(), style=COLOURS[level])

    names = [
        Text(BEHAVIOUR, style="italic") if index is None else Text(comparison.policies[index], style="bold")
        for index in order
    ]
    columns = [
        (comparison.label(method), [show(method, index) for index in order]) for method in findings.runs
    ]
    if comparison.truth is not None:
        true = comparison.truth
        known = [None if index is None else true[comparison.policies[index]] for index in order]
        columns.append((TRUE, [Text("" if v is None else format_value(v, digits)) for v in known]))
    return names, columns


def _levels(findings: Findings) -> set[str]:
    return {verdict.level for found in findings.verdicts_by_method.values() for verdict in found.values()}


def explain_values(findings: Findings) -> str:
    """What stands in the table of values."""
    confidence = findings.interval.replace("\N{NO-BREAK SPACE}", " ")
    marks = explain_marks(_levels(findings), behaviour=findings.behaviour is not None)
    return "; ".join([f"value ± half the width of its {confidence}", *marks])


def agreement_table(comparison: Comparison) -> Table:
    """Rank correlation between every two methods."""
    table = _table("agreement")
    for method in comparison.estimates:
        table.add_column(comparison.label(method), justify="right", no_wrap=True)
    for method, row in zip(comparison.estimates, comparison.agreement(), strict=True):
        table.add_row(comparison.label(method), *(format_value(value, 2) for value in row))
    return table


def scores_table(comparison: Comparison) -> Table:
    """Metrics of every method with their spread over seeds, and its time."""
    table = _table("method")
    for name in ("rank correlation", "regret@1", "MAE", "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    for method in comparison.estimates:
        texts = score_texts(comparison, method)
        table.add_row(comparison.label(method), *texts, f"{comparison.seconds(method):,.0f}")
    return table


def score_texts(comparison: Comparison, method: str) -> tuple[str, str, str]:
    """Rank correlation, regret@1 and mean absolute error, each with its spread over seeds.

    Empty if the truth is of another estimand.
    """
    scores = comparison.scores(method)
    if not scores:
        return "", "", ""
    return (
        _spread([score.rank_correlation for score in scores], 2),
        _spread([score.regret for score in scores], 2),
        _spread([score.absolute_error for score in scores], 1),
    )


def print_comparison(comparison: Comparison, console: Console) -> None:
    if comparison.task is not None:
        console.print(comparison.task, style="bold", highlight=False, markup=False)
    console.print(describe_estimand(comparison.estimand), highlight=False)
    findings = make_findings(comparison)
    for table in values_tables(findings, console.width):
        console.print(table)
    console.print(explain_values(findings), style="dim", highlight=False)
    if len(comparison.estimates) > 1:
        console.print(agreement_table(comparison))
        console.print("agreement: rank correlation of two methods", style="dim", highlight=False)
    for sentence in filter(None, (describe_choice(findings), describe_agreement(findings))):
        console.print(sentence, style="bold", highlight=False, markup=False)
    print_backtests(comparison.backtest, findings.estimates.values.tolist(), console)
    if comparison.truth is not None:
        console.print(scores_table(comparison))
    for method, reason in comparison.failures.items():
        fate = "stopped early" if method in comparison.estimates else "was left out"
        console.print(f"{method} {fate}: {reason}", style="red", highlight=False, markup=False)
    print_notes(merge_notes(findings), console)


def merge_notes(findings: Findings) -> list[tuple[str, str]]:
    """What speaks against the estimates, with the methods that it concerns."""
    methods: dict[tuple[str, str], list[str]] = {}
    for method, run in findings.runs.items():
        for note in list_notes(run, findings.verdicts_by_method[method]):
            methods.setdefault(note, []).append(method)
    order = ("warning", "doubtful", "caution")
    notes = [(level, f"{', '.join(found)}: {text}") for (level, text), found in methods.items()]
    return sorted(notes, key=lambda note: order.index(note[0]))


def as_text(comparison: Comparison) -> str:
    """What `print` shows."""
    from vlbm.terminal import SafeConsole

    buffer = io.StringIO()
    print_comparison(comparison, SafeConsole(file=buffer, width=120, color_system=None))
    return buffer.getvalue().rstrip()


def _table(first: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    table.add_column(first, style="bold", overflow="fold", min_width=len(first))
    return table


def _spread(values: Sequence[float], digits: int) -> str:
    if not np.isfinite(values).all():
        return NOTHING
    mean = format_value(float(np.mean(values)), digits)
    return mean if len(values) == 1 else f"{mean} ± {format_value(float(np.std(values, ddof=1)), digits)}"
