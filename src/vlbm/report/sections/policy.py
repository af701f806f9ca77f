"""The details of a policy, shown on a click."""

from __future__ import annotations

import numpy as np

from vlbm.experiments.evidence.recorder import PolicyEvidence
from vlbm.report.charts.histogram import histogram_chart
from vlbm.report.charts.lines import Line, line_chart
from vlbm.report.charts.scale import extent
from vlbm.report.findings import Findings
from vlbm.report.numbers import format_known, format_number, format_percent
from vlbm.report.parts import Block, Bullets, Chart, Facts, Gallery, Prose
from vlbm.results.diagnostics.support import QUANTILE
from vlbm.results.estimate import Estimate

MOST_CHARTS = 300  # trajectory charts on a page, over all policies
FEWEST_CHARTS = 2  # for every policy


def policy_details(findings: Findings, index: int) -> tuple[Block, ...]:
    """Reasons for and against the estimate, then charts of the policy's roll-outs."""
    row = findings.estimates[index]
    verdict = findings.verdicts[index]
    blocks: list[Block] = [Facts(_list_facts(findings, row))]
    if verdict.reasons:
        blocks.append(Bullets(tuple((reason.level, reason.text) for reason in verdict.reasons)))
    charts = [] if row.returns is None else [_returns_chart(findings, row, row.returns)]
    seen, evidence = findings.imagined(row.policy), findings.evidence
    if seen is not None and evidence is not None:
        charts.append(_survival_chart(findings, seen, evidence.times))
        if seen.outside is not None:
            charts.append(_outside_chart(findings, seen, evidence.times))
    if charts:
        blocks.append(Gallery(tuple(charts)))
    if seen is not None and evidence is not None:
        charts_over_time = _trajectory_charts(findings, seen)
        if charts_over_time:
            blocks.append(Gallery(charts_over_time, chooser="Observations over time"))
            left = len(evidence.dimensions) - len(charts_over_time)
            if left > 0:
                text = f"{left} more dimensions are kept but not drawn, to keep the page small."
                blocks.append(Prose((text,), note=True))
    return tuple(blocks)


def _list_facts(findings: Findings, row: Estimate) -> tuple[tuple[str, str], ...]:
    write = findings.write
    facts = [
        (f"{findings.interval} of the value", f"{write(row.lower)} to {write(row.upper)}"),
        ("standard error", write(row.standard_error)),
    ]
    for name, low, high in (("half of the returns", 0.25, 0.75), ("nine of ten returns", 0.05, 0.95)):
        ends = row.quantile(low), row.quantile(high)
        if None not in ends:
            facts.append((name, " to ".join(format_known(end, write) for end in ends)))
    for name, value in row.details.items():
        digits = 0 if abs(value) >= 1000 else 2
        facts.append((name.replace("_", " "), format_number(value, digits)))
    return tuple(facts)


def _returns_chart(findings: Findings, row: Estimate, returns: np.ndarray) -> Chart:
    logged = findings.comparison.logged
    weighted = "effective_sample_size" in row.details
    own = "logged, weighted" if weighted else "imagined"
    groups = [] if logged is None else [("logged", "logged", logged.returns)]
    return histogram_chart(
        "Returns",
        [*groups, (own, "c0", returns)],
        x_label="discounted return",
        mark=("estimated value", row.value),
    )


def _survival_chart(findings: Findings, seen: PolicyEvidence, times: np.ndarray) -> Chart:
    logged = findings.comparison.logged
    lines = [] if logged is None else [Line("logged", "logged", logged.times, logged.running)]
    lines.append(Line(_rollout_label(findings), "c0", times, seen.running))
    caption = f"{format_percent(seen.terminated)} of the imagined episodes terminated"
    caption += "." if logged is None else f"; {format_percent(logged.terminated)} of the logged ones did."
    return line_chart(
        "When episodes end",
        lines,
        x_label="step",
        y_label="episodes still running",
        y_range=(0.0, 1.04),
        y_text=format_percent,
        caption=caption,
    )


def _rollout_label(findings: Findings) -> str:
    """The label of roll-outs, with the method if it is not that of the page."""
    return (
        "imagined" if findings.rollout_method == findings.method else f"imagined by {findings.rollout_method}"
    )


def _outside_chart(findings: Findings, seen: PolicyEvidence, times: np.ndarray) -> Chart:
    assert seen.outside is not None
    return line_chart(
        "Where it leaves the data",
        [
            Line("logged steps", "logged", times, np.full(len(times), 1 - QUANTILE)),
            Line(f"steps {_rollout_label(findings)}", "c1", times, seen.outside),
        ],
        x_label="step",
        y_label="share outside the log",
        y_range=(0.0, 1.04),
        y_text=format_percent,
        caption="Outside: farther from any logged observation and action than 99 % of held-out logged "
        f"steps are. Over all steps: {format_percent(seen.outside_share or 0.0)}.",
    )


def _trajectory_charts(findings: Findings, seen: PolicyEvidence) -> tuple[Chart, ...]:
    evidence, logged = findings.evidence, findings.comparison.logged
    assert evidence is not None
    most = max(MOST_CHARTS // len(findings.estimates), FEWEST_CHARTS)
    charts = []
    for place, dimension in enumerate(evidence.dimensions[:most]):
        imagined = seen.trajectories[:, place]
        name = f"Observation {dimension}" if logged is None else logged.name_observation(int(dimension))
        lines = [
            Line(
                _rollout_label(findings), "c0", evidence.times, imagined[:, 1], imagined[:, 0], imagined[:, 2]
            )
        ]
        # One scale for all policies, so that they can be compared from row to row.
        everything = [part.trajectories[:, place] for part in evidence.policies.values()]
        if logged is not None:
            past = logged.trajectories[:, place]
            lines.insert(0, Line("logged", "logged", logged.times, past[:, 1], past[:, 0], past[:, 2]))
            everything.append(past)
        charts.append(
            line_chart(
                name,
                lines,
                x_label="step",
                y_label=name if logged is not None and logged.observation_names else name.lower(),
                y_range=extent(np.concatenate(everything).ravel(), margin=0.04),
                caption="Line: median; band: 90 % of the episodes that still run.",
                option=name.removeprefix("Observation "),
            )
        )
    return tuple(charts)
