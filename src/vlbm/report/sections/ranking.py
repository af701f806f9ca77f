"""The ranking: a row for every policy."""

from __future__ import annotations

import math

from vlbm.report.charts.intervals import Mark, interval_bar
from vlbm.report.findings import Findings
from vlbm.report.numbers import format_confidence, format_number, format_probability
from vlbm.report.parts import Cell, Column, RankedRow, Ranking, Section
from vlbm.report.sections.policy import policy_details
from vlbm.results.diagnostics.trust import Verdict
from vlbm.results.estimate import Estimate

WORDS = {"sound": "no objection", "caution": "caution", "doubtful": "doubtful"}
RANK = {"sound": 0.0, "caution": 1.0, "doubtful": 2.0}


def ranking_section(findings: Findings) -> Section:
    """Best first; a click shows the rest."""
    rows = tuple(_make_row(findings, index) for index in findings.order)
    return Section("ranking", "Ranking", (Ranking(_make_columns(findings), rows, _write_caption(findings)),))


def _make_columns(findings: Findings) -> tuple[Column, ...]:
    low, high = findings.bounds()
    columns = [
        Column("policy", "Policy", "Sort by name", descending=False),
        Column("value", "Value", "Mean discounted return"),
        Column(
            "interval",
            findings.interval,
            "Where the value lies with a probability of "
            f"{format_confidence(findings.estimates.confidence)}; sorts by the lower end",
            ends=(findings.write(low), findings.write(high)),
        ),
        Column("best", "P(best)", "Probability of being the best of these policies"),
    ]
    if findings.above is not None:
        columns.append(Column("above", "P(> logged)", "Probability of beating the behaviour policy"))
    columns += [
        Column("cvar", "CVaR 10 %", "Mean of the worst tenth of returns"),
        Column("length", "Length", "Expected steps of an episode"),
    ]
    if findings.truth is not None:
        columns.append(Column("truth", "True", "The true value, known for this task"))
    return (*columns, Column("trust", "Trust", "Objections from the diagnostics"))


def _make_row(findings: Findings, index: int) -> RankedRow:
    row, write = findings.estimates[index], findings.write
    truth = findings.truth
    true = None if truth is None else truth[row.policy]
    best = float(findings.best[index])
    cells = [
        Cell(row.policy, row.policy),
        Cell(write(row.value), row.value),
        Cell(f"{write(row.lower)} to {write(row.upper)}", row.lower, _draw_bar(findings, row, true)),
        Cell(format_probability(best), best),
    ]
    if findings.above is not None:
        cells.append(Cell(format_probability(float(findings.above[index])), float(findings.above[index])))
    cells += [Cell(write(row.cvar()), row.cvar()), Cell(format_number(row.length, 0), row.length)]
    if true is not None:
        cells.append(Cell(write(true), true))
    verdict = findings.verdicts[index]
    cells.append(
        Cell(
            _describe_trust(verdict), RANK[verdict.level] + len(verdict.objections) / 100, mark=verdict.level
        )
    )
    return RankedRow(row.policy, tuple(cells), policy_details(findings, index))


def _draw_bar(findings: Findings, row: Estimate, true: float | None):
    logged, write = findings.comparison.logged, findings.write
    description = f"{write(row.value)}, {findings.interval} {write(row.lower)} to {write(row.upper)}"
    if true is not None:
        description += f", true value {write(true)}"
    return interval_bar(
        [Mark(row.policy, "c0", row.lower, row.value, row.upper)],
        findings.bounds(),
        description=description,
        reference=None if logged is None or not math.isfinite(logged.mean) else logged.mean,
        truth=true,
    )


def _describe_trust(verdict: Verdict) -> str:
    objections = verdict.objections
    if not objections:
        return WORDS["sound"]
    more = f" (+{len(objections) - 1})" if len(objections) > 1 else ""
    brief = objections[0].brief
    return (brief if len(brief) <= 60 else brief[:57] + "…") + more


def _write_caption(findings: Findings) -> str:
    parts = [f"Bar: {findings.interval} of the value, dot: the value"]
    if findings.comparison.logged is not None:
        parts.append("dashed line: mean logged return")
    if findings.truth is not None:
        parts.append("diamond: the truth")
    return (
        "; ".join(parts) + ". Probabilities take errors for normal, independent and as wide as the "
        "intervals; what intervals do not cover, they do not either."
    )
