"""Methods side by side."""

from __future__ import annotations

from vlbm.report.charts.intervals import Mark, lanes_chart
from vlbm.report.charts.scale import extent
from vlbm.report.findings import Findings
from vlbm.report.numbers import MINUS, NOTHING, format_number
from vlbm.report.parts import Block, Bullets, Prose, Section, Table

STYLES = tuple(f"c{index}" for index in range(8))


def methods_section(findings: Findings) -> Section | None:
    """Estimates of every method, their agreement, and effective sample sizes."""
    comparison = findings.comparison
    if len(comparison.estimates) < 2 and not comparison.failures:
        return None
    blocks: list[Block] = [Prose(_describe_estimands(findings))]
    if len(comparison.estimates) > 1:
        blocks.append(_estimates_chart(findings))
        labels = [comparison.label(method) for method in comparison.estimates]
        blocks.append(agreement_table(labels, comparison.agreement().tolist()))
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


def _estimates_chart(findings: Findings):
    comparison = findings.comparison
    pooled = {method: comparison.pool_seeds(method) for method in comparison.estimates}
    rows = [
        (
            comparison.policies[index],
            [
                Mark(comparison.label(method), STYLES[place % len(STYLES)], row.lower, row.value, row.upper)
                for place, (method, row) in enumerate((name, found[index]) for name, found in pooled.items())
            ],
            None if findings.truth is None else findings.truth[comparison.policies[index]],
        )
        for index in findings.order
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
        tuple(tuple(row) for row in agreement),
    )


def _effective_size_table(findings: Findings) -> Table | None:
    comparison = findings.comparison
    pooled = {method: comparison.pool_seeds(method) for method in comparison.estimates}
    known = {
        method: [row.details.get("effective_sample_size") for row in found]
        for method, found in pooled.items()
    }
    known = {method: sizes for method, sizes in known.items() if any(size is not None for size in sizes)}
    if not known:
        return None
    rows = tuple(
        (
            comparison.policies[index],
            *(
                NOTHING if (size := sizes[index]) is None else format_number(size, 1)
                for sizes in known.values()
            ),
        )
        for index in findings.order
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
