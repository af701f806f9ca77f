"""Comparisons as tables for the terminal."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from vlbm.report.numbers import NOTHING
from vlbm.report.tables import choose_decimals, describe_estimand, format_value
from vlbm.results.estimate import all_warnings

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from vlbm.experiments.comparison import Comparison


def values_table(comparison: Comparison) -> Table:
    """A row for every policy, a column for every method: value and the half width of its interval."""
    from rich.text import Text

    table = _table("policy")
    methods = list(comparison.estimates)
    for method in methods:
        table.add_column(comparison.label(method), justify="right", no_wrap=True)
    if comparison.truth is not None:
        table.add_column("true", justify="right", style="green", no_wrap=True)
    values = {method: comparison.values(method) for method in methods}
    digits = choose_decimals([value for column in values.values() for value in column])
    first = values[methods[0]]
    for index in np.argsort(-first):
        policy = comparison.policies[index]
        cells = []
        for method in methods:
            rows = [estimates[index] for estimates in comparison.estimates[method]]
            half = float(np.mean([(row.upper - row.lower) / 2 for row in rows]))
            doubted = any(row.warnings for row in rows)
            text = f"{format_value(values[method][index], digits)} ± {format_value(half, digits)}"
            cells.append(Text(text + (" !" if doubted else ""), style="yellow" if doubted else ""))
        truth = [] if comparison.truth is None else [format_value(comparison.truth[policy], digits)]
        table.add_row(Text(policy), *cells, *truth)
    return table


def agreement_table(comparison: Comparison) -> Table:
    """Rank correlation between every two methods."""
    table = _table("agreement")
    for method in comparison.estimates:
        table.add_column(comparison.label(method), justify="right", no_wrap=True)
    for method, row in zip(comparison.estimates, comparison.agreement(), strict=True):
        table.add_row(comparison.label(method), *(f"{value:.2f}" for value in row))
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
    console.print(values_table(comparison))
    if len(comparison.estimates) > 1:
        console.print(agreement_table(comparison))
    if comparison.truth is not None:
        console.print(scores_table(comparison))
    for method, reason in comparison.failures.items():
        fate = "stopped early" if method in comparison.estimates else "was left out"
        console.print(f"{method} {fate}: {reason}", style="red", highlight=False, markup=False)
    for method, found in comparison.estimates.items():
        for warning in all_warnings(*found):
            console.print(f"warning: {method}: {warning}", style="yellow", highlight=False, markup=False)


def as_text(comparison: Comparison) -> str:
    """What `print` shows."""
    from rich.console import Console

    buffer = io.StringIO()
    print_comparison(comparison, Console(file=buffer, width=120, color_system=None))
    return buffer.getvalue().rstrip()


def _table(first: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    table.add_column(first, style="bold", overflow="fold")
    return table


def _spread(values: Sequence[float], digits: int) -> str:
    if not np.isfinite(values).all():
        return NOTHING
    mean = format_value(float(np.mean(values)), digits)
    return mean if len(values) == 1 else f"{mean} ± {format_value(float(np.std(values, ddof=1)), digits)}"
