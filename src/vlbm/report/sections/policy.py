"""What a click on a policy shows."""

from __future__ import annotations

import numpy as np

from vlbm.experiments.evidence.imagined import PolicyEvidence
from vlbm.report.charts.histogram import histogram_chart
from vlbm.report.charts.lines import Line, line_chart
from vlbm.report.charts.scale import extent
from vlbm.report.findings import Findings
from vlbm.report.numbers import number, percent
from vlbm.report.parts import Block, Bullets, Chart, Facts, Gallery, Prose
from vlbm.results.diagnostics.support import QUANTILE
from vlbm.results.estimate import Estimate

MOST_COURSES = 300  # charts of state courses on a page, whatever the number of policies
FEWEST_COURSES = 2  # for every policy


def details(findings: Findings, index: int) -> tuple[Block, ...]:
    """Why it is trusted or not, then what it would do."""
    row = findings.estimates[index]
    verdict = findings.verdicts[index]
    blocks: list[Block] = [Facts(_facts(findings, row))]
    if verdict.reasons:
        blocks.append(Bullets(tuple((reason.level, reason.text) for reason in verdict.reasons)))
    charts = [_returns(findings, row)]
    seen, evidence = findings.imagined(row.policy), findings.evidence
    if seen is not None and evidence is not None:
        charts.append(_endings(findings, seen, evidence.times))
        if seen.outside is not None:
            charts.append(_outside(findings, seen, evidence.times))
    blocks.append(Gallery(tuple(charts)))
    if seen is not None and evidence is not None:
        courses = _courses(findings, seen)
        if courses:
            blocks.append(Gallery(courses, chooser="Observations over time"))
            left = len(evidence.dimensions) - len(courses)
            if left > 0:
                text = f"{left} more dimensions are kept but not drawn, to keep the page small."
                blocks.append(Prose((text,), note=True))
    return tuple(blocks)


def _facts(findings: Findings, row: Estimate) -> tuple[tuple[str, str], ...]:
    write = findings.write
    facts = [
        (f"{findings.interval} of the value", f"{write(row.lower)} to {write(row.upper)}"),
        ("standard error", write(row.standard_error)),
        ("half of the returns", f"{write(row.quantile(0.25))} to {write(row.quantile(0.75))}"),
        ("nine of ten returns", f"{write(row.quantile(0.05))} to {write(row.quantile(0.95))}"),
    ]
    for name, value in row.details.items():
        digits = 0 if abs(value) >= 1000 else 2
        facts.append((name.replace("_", " "), number(value, digits)))
    return tuple(facts)


def _returns(findings: Findings, row: Estimate) -> Chart:
    logged = findings.comparison.logged
    weighed = "effective_sample_size" in row.details
    own = (
        "logged, weighed" if weighed else "imagined" if findings.imaginer == findings.method else "estimated"
    )
    groups = [] if logged is None else [("logged", "logged", logged.returns)]
    return histogram_chart(
        "Returns",
        [*groups, (own, "c0", row.returns)],
        x_label="discounted return",
        mark=("estimated value", row.value),
    )


def _endings(findings: Findings, seen: PolicyEvidence, times: np.ndarray) -> Chart:
    logged = findings.comparison.logged
    lines = [] if logged is None else [Line("logged", "logged", logged.times, logged.running)]
    lines.append(Line(_imagined(findings), "c0", times, seen.running))
    caption = f"The worlds ended {percent(seen.ended)} of the imagined episodes"
    caption += (
        "." if logged is None else f"; {percent(logged.ended)} of the logged ones were ended by the system."
    )
    return line_chart(
        "When episodes end",
        lines,
        x_label="step",
        y_label="episodes still running",
        y_range=(0.0, 1.04),
        y_text=percent,
        caption=caption,
    )


def _imagined(findings: Findings) -> str:
    """What imagined episodes are called: by whom, if another method answers."""
    return "imagined" if findings.imaginer == findings.method else f"imagined by {findings.imaginer}"


def _outside(findings: Findings, seen: PolicyEvidence, times: np.ndarray) -> Chart:
    assert seen.outside is not None
    return line_chart(
        "Where it leaves the data",
        [
            Line("logged steps", "logged", times, np.full(len(times), 1 - QUANTILE)),
            Line(f"steps {_imagined(findings)}", "c1", times, seen.outside),
        ],
        x_label="step",
        y_label="share outside the log",
        y_range=(0.0, 1.04),
        y_text=percent,
        caption="Outside: farther from any logged observation and action than 99 % of held-out logged "
        f"steps are. Over all steps: {percent(seen.outside_share or 0.0)}.",
    )


def _courses(findings: Findings, seen: PolicyEvidence) -> tuple[Chart, ...]:
    evidence, logged = findings.evidence, findings.comparison.logged
    assert evidence is not None
    most = max(MOST_COURSES // len(findings.estimates), FEWEST_COURSES)
    charts = []
    for place, dimension in enumerate(evidence.dimensions[:most]):
        imagined = seen.courses[:, place]
        lines = [
            Line(_imagined(findings), "c0", evidence.times, imagined[:, 1], imagined[:, 0], imagined[:, 2])
        ]
        # One scale for all policies, so that they can be compared from row to row.
        everything = [part.courses[:, place] for part in evidence.policies.values()]
        if logged is not None:
            past = logged.courses[:, place]
            lines.insert(0, Line("logged", "logged", logged.times, past[:, 1], past[:, 0], past[:, 2]))
            everything.append(past)
        charts.append(
            line_chart(
                f"Observation {dimension}",
                lines,
                x_label="step",
                y_label=f"observation {dimension}",
                y_range=extent(np.concatenate(everything).ravel(), margin=0.04),
                caption="Line: median; band: 90 % of the episodes that still run.",
                option=str(dimension),
            )
        )
    return tuple(charts)
