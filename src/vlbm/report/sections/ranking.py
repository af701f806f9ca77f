"""The ranking: a row for every policy."""

from __future__ import annotations

import math

from vlbm.report.charts.intervals import Mark, interval_bar
from vlbm.report.findings import Findings
from vlbm.report.logs import BEHAVIOUR
from vlbm.report.numbers import (
    NOTHING,
    Formatter,
    format_confidence,
    format_count,
    format_known,
    format_number,
    format_probability,
)
from vlbm.report.parts import Block, Cell, Column, Prose, RankedRow, Ranking, Section, Table
from vlbm.report.sections.policy import policy_details
from vlbm.results.behaviour import BehaviourRow
from vlbm.results.diagnostics.trust import Verdict
from vlbm.results.estimate import Estimate

WORDS = {"sound": "no objection", "caution": "caution", "doubtful": "doubtful"}
MOST_PAIRS = 12  # policies in the table of pairs
RANK = {"sound": 0.0, "caution": 1.0, "doubtful": 2.0}


def ranking_section(findings: Findings) -> Section:
    """Best first; a click shows the rest."""
    rows = [_make_row(findings, index) for index in findings.order]
    if findings.behaviour is not None:
        better = sum(row.value >= findings.behaviour.value for row in findings.estimates)
        rows.insert(better, _make_behaviour_row(findings, findings.behaviour))
    blocks: list[Block] = [Ranking(_make_columns(findings), tuple(rows), _write_caption(findings))]
    if len(findings.estimates) > 1:
        blocks.append(pairs_table(findings))
    return Section("ranking", "Ranking", tuple(blocks))


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
    if any(row.returns is not None for row in findings.estimates):
        columns.append(Column("cvar", "CVaR 10 %", "Mean of the worst tenth of returns"))
    if any(row.length is not None for row in findings.estimates):
        columns.append(Column("length", "Length", "Expected steps of an episode"))
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
    known = {column.key for column in _make_columns(findings)}
    if "cvar" in known:
        cells.append(_make_cell(row.cvar(), write))
    if "length" in known:
        cells.append(_make_cell(row.length, lambda value: format_number(value, 0)))
    if true is not None:
        cells.append(Cell(write(true), true))
    verdict = findings.verdicts[index]
    cells.append(
        Cell(
            _describe_trust(verdict), RANK[verdict.level] + len(verdict.objections) / 100, mark=verdict.level
        )
    )
    return RankedRow(row.policy, tuple(cells), policy_details(findings, index))


def _make_behaviour_row(findings: Findings, row: BehaviourRow) -> RankedRow:
    """What logged episodes earned, among what policies are estimated to earn."""
    write = findings.write
    known = {
        "policy": Cell(BEHAVIOUR, BEHAVIOUR),
        "value": Cell(write(row.value), row.value),
        "interval": Cell(
            f"{write(row.lower)} to {write(row.upper)}", row.lower, _draw_bar(findings, row, None, "logged")
        ),
        "trust": Cell("logged, not estimated", -1.0),
    }
    cells = tuple(known.get(column.key, Cell(NOTHING, "")) for column in _make_columns(findings))
    text = (
        f"What {format_count(row.episodes, 'logged episode')} earned on average, discounted and cut at the "
        "horizon as all values here. It was seen, not estimated; its interval is that of a mean."
    )
    return RankedRow(BEHAVIOUR, cells, (Prose((text,)),))


def pairs_table(findings: Findings) -> Table:
    """P(row > column) for the policies estimated best, best first."""
    shown = list(findings.order[:MOST_PAIRS])
    names = [findings.estimates[index].policy for index in shown]
    rows = tuple(
        (
            name,
            *(
                NOTHING if one == other else format_probability(float(findings.pairs[one, other]))
                for other in shown
            ),
        )
        for name, one in zip(names, shown, strict=True)
    )
    left = len(findings.order) - len(shown)
    caption = "How likely the policy of the row is worth more than that of the column"
    caption += f" (of the {len(shown)} estimated best)." if left else "."
    shades = tuple(tuple(2 * float(findings.pairs[one, other]) - 1 for other in shown) for one in shown)
    return Table(("P(row > column)", *names), rows, caption, shades)


def _draw_bar(findings: Findings, row: Estimate | BehaviourRow, true: float | None, style: str = "c0"):
    logged, write = findings.comparison.logged, findings.write
    description = f"{write(row.value)}, {findings.interval} {write(row.lower)} to {write(row.upper)}"
    if true is not None:
        description += f", true value {write(true)}"
    return interval_bar(
        [Mark("value", style, row.lower, row.value, row.upper)],
        findings.bounds(),
        description=description,
        reference=None if logged is None or not math.isfinite(logged.mean) else logged.mean,
        truth=true,
    )


def _make_cell(value: float | None, write: Formatter) -> Cell:
    return Cell(format_known(value, write), "" if value is None else value)


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
        "intervals; what intervals do not cover, they do not either. A wide interval can give a policy "
        "further down the larger P(best): rank by value, and look at pairs."
    )
