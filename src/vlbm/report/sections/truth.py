"""Estimates against the truth, where it is known."""

from __future__ import annotations

from vlbm.report.charts.scatter import ScatterPoint, scatter_chart
from vlbm.report.comparisons import score_texts
from vlbm.report.findings import Findings
from vlbm.report.numbers import MINUS
from vlbm.report.parts import Block, Gallery, Section, Table
from vlbm.report.sections.methods import STYLES


def truth_section(findings: Findings) -> Section | None:
    """Errors of every method; the truth is used for nothing else."""
    comparison = findings.comparison
    if comparison.truth is None or findings.truth is None:
        return None
    spots, legend = [], []
    for place, method in enumerate(comparison.estimates):
        if not comparison.matches_estimand(method):  # the truth is of another estimand
            continue
        legend.append((STYLES[place % len(STYLES)], method))
        for row in findings.runs[method]:
            true = comparison.truth[row.policy]
            label = row.policy if len(comparison.estimates) == 1 else f"{row.policy} by {method}"
            spots.append(
                ScatterPoint(label, STYLES[place % len(STYLES)], true, row.value, row.lower, row.upper)
            )
    chart = scatter_chart(
        "Estimates against the truth",
        spots,
        x_label="true value",
        y_label="estimate",
        write=findings.write,
        caption="On the line, an estimate equals the truth. Nothing was fitted to the truth or chosen by it.",
        legend=tuple(legend),
    )
    blocks: list[Block] = [Gallery((chart,))]
    if len(comparison.policies) > 1:
        blocks.insert(0, scores_table(findings))
    return Section("truth", "Against the truth", tuple(blocks))


def scores_table(findings: Findings) -> Table:
    """Rank correlation, regret and error of every method, with the spread over seeds."""
    comparison = findings.comparison
    rows = tuple(
        (comparison.label(method), *(text.replace("-", MINUS) for text in score_texts(comparison, method)))
        for method in comparison.estimates
    )
    return Table(
        ("method", "rank correlation", "regret@1", "mean absolute error"),
        rows,
        f"The truth: {comparison.estimand}. Methods with another estimand are not scored. Regret@1: "
        "what is lost by deploying the policy estimated best, as a share of the true range.",
    )
