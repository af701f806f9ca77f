"""Methods side by side."""

from __future__ import annotations

import numpy as np

from vlbm.report.charts.intervals import Mark, lanes_chart
from vlbm.report.charts.scale import extent
from vlbm.report.findings import Findings
from vlbm.report.numbers import MINUS, format_known, format_number, format_percent
from vlbm.report.parts import Block, Bullets, Prose, Section, Table
from vlbm.report.sentences import describe_agreement, describe_choice

EFFECTIVE = "effective_sample_size"
STYLES = tuple(f"c{index}" for index in range(8))


def methods_section(findings: Findings) -> Section | None:
    """Estimates of every method, their agreement, and effective sample sizes."""
    comparison = findings.comparison
    if len(comparison.estimates) < 2 and not comparison.failures:
        return None
    words = [describe_choice(findings), describe_agreement(findings)]
    blocks: list[Block] = [Prose((*_describe_estimands(findings), *filter(None, words)))]
    if len(comparison.estimates) > 1:
        blocks += [_trust_table(findings), _estimates_chart(findings)]
        labels = [comparison.label(method) for method in comparison.estimates]
        blocks.append(agreement_table(labels, comparison.agreement().tolist()))
        blocks.append(_levels_table(findings, labels))
    effective = _effective_size_table(findings)
    if effective is not None:
        blocks.append(effective)
    left_out = tuple(("doubtful", f"{name} was left out: {why}") for name, why in comparison.failures.items())
    if left_out:
        blocks.append(Bullets(left_out))
    return Section("methods", "Methods side by side", tuple(blocks))


def _describe_estimands(findings: Findings) -> tuple[str, ...]:
    """The requested estimand, and the methods with another one."""
    comparison = findings.comparison
    others = [
        f"{method} estimates another quantity, which cannot be compared to the others or the truth: "
        f"{found[0].estimand}."
        for method, found in comparison.estimates.items()
        if not comparison.matches_estimand(method)
    ]
    return (f"Requested: {comparison.estimand}.", *others)


def _trust_table(findings: Findings) -> Table:
    """How many estimates of every method have which verdict, and how far it was off on the held-out log."""
    rows = []
    errors = {name: test.error_share for name, test in findings.backtests.items()}
    for method, verdicts in findings.verdicts_by_method.items():
        levels = [verdict.level for verdict in verdicts.values()]
        error = (format_known(errors.get(method), format_percent),) if errors else ()
        counts = (f"{levels.count(level)}" for level in ("sound", "caution", "doubtful"))
        rows.append((findings.comparison.label(method), *counts, *error))
    headings: tuple[str, ...] = ("estimates with", "no objection", "caution", "doubtful")
    headings += ("off on the held-out log",) if errors else ()
    return Table(headings, tuple(rows), "What each method's own diagnostics say; the truth is not asked.")


def _levels_table(findings: Findings, labels: list[str]) -> Table:
    """The mean absolute difference between the values of every two methods."""
    values = [findings.comparison.values(method) for method in findings.runs]
    extent = float(np.ptp([value for column in values for value in column if np.isfinite(value)]))
    apart = [[_mean_difference(first, second) for second in values] for first in values]
    return Table(
        ("difference in level", *labels),
        tuple((label, *map(findings.write, row)) for label, row in zip(labels, apart, strict=True)),
        f"Mean absolute difference between the values of every two methods; all values lie within "
        f"{findings.write(extent)}.",
        tuple(tuple(-value / extent if value > 0 else 0.0 for value in row) for row in apart),
    )


def _mean_difference(first: np.ndarray, second: np.ndarray) -> float:
    """Over the policies that both estimate; NaN if there are none."""
    difference = np.abs(first - second)
    both = np.isfinite(difference)
    return float(difference[both].mean()) if both.any() else float("nan")


def _estimates_chart(findings: Findings):
    comparison = findings.comparison
    rows = [
        (
            policy,
            [
                Mark(comparison.label(method), STYLES[place % len(STYLES)], row.lower, row.value, row.upper)
                for place, (method, found) in enumerate(findings.runs.items())
                for row in found
                if row.policy == policy
            ],
            None if findings.truth is None else findings.truth[policy],
        )
        for policy in (row.policy for row in findings.ranked)
    ]
    ends = [end for _, marks, true in rows for mark in marks for end in (mark.lower, mark.upper)]
    ends += [] if findings.truth is None else list(findings.truth.values())
    seeds = max(len(found) for found in comparison.estimates.values())
    return lanes_chart(
        "Estimates of every method",
        rows,
        extent(ends),
        write=findings.write,
        reference=None if comparison.logged is None else comparison.logged.mean,
        caption=f"Dot: value; bar: {findings.interval}"
        + (f", over {seeds} seeds" if seeds > 1 else "")
        + ("; diamond: the truth" if findings.truth is not None else "")
        + ("; dashed line: mean logged return" if comparison.logged is not None else "")
        + ".",
    )


def agreement_table(names: list[str], agreement: list[list[float]]) -> Table:
    """Rank correlations of every two methods, shaded by their size."""
    return Table(
        ("agreement", *names),
        tuple(
            (name, *(format_number(value, 2) for value in row))
            for name, row in zip(names, agreement, strict=True)
        ),
        f"Rank correlation of every two methods: 1 is the same order, 0 unrelated, {MINUS}1 the reverse.",
        tuple(tuple(float(np.nan_to_num(value)) for value in row) for row in agreement),
    )


def _effective_size_table(findings: Findings) -> Table | None:
    comparison = findings.comparison
    known = {
        method: {row.policy: row.details[EFFECTIVE] for row in found if EFFECTIVE in row.details}
        for method, found in findings.runs.items()
    }
    known = {method: sizes for method, sizes in known.items() if sizes}
    if not known:
        return None
    rows = tuple(
        (
            row.policy,
            *(
                format_known(sizes.get(row.policy), lambda size: format_number(size, 1))
                for sizes in known.values()
            ),
        )
        for row in findings.ranked
    )
    logged = comparison.logged
    of = "" if logged is None else f", of {logged.episodes:,} that were logged"
    caption = f"Effective sample size: how many on-policy episodes the weighted log is worth{of}."
    labels = (comparison.label(method) for method in known)
    return Table(("effective sample size", *labels), rows, caption)


def seeds_note(findings: Findings) -> Prose | None:
    seeds = len(findings.comparison.estimates[findings.method])
    if seeds < 2:
        return None
    return Prose(
        (f"Values are means over {seeds} seeds; intervals include the spread over seeds.",), note=True
    )
