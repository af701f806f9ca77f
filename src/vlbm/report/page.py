"""The page that a decision is made from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vlbm.experiments.evidence.complete import add_evidence
from vlbm.report.findings import make_findings
from vlbm.report.parts import Page, drop_empty
from vlbm.report.rendering import render, write_html
from vlbm.report.sections.answer import write_answer, write_heading
from vlbm.report.sections.methods import methods_section
from vlbm.report.sections.model import model_section
from vlbm.report.sections.provenance import provenance_section
from vlbm.report.sections.ranking import ranking_section
from vlbm.report.sections.truth import truth_section
from vlbm.report.tables import describe_estimand

if TYPE_CHECKING:
    from vlbm.experiments.comparison import Comparison


def write_page(comparison: Comparison, path: Path) -> None:
    write_html(make_page(comparison), path)


def render_page(comparison: Comparison) -> str:
    return render(make_page(comparison))


def make_page(comparison: Comparison) -> Page:
    """All sections that are not empty, from the answer to its provenance."""
    comparison = add_evidence(comparison)
    findings = make_findings(comparison)
    warnings = list(findings.estimates.warnings)
    warnings += [] if comparison.logged is None else comparison.logged.warnings
    return Page(
        title=write_heading(findings),
        eyebrow="Off-policy evaluation" + (f" · {comparison.task}" if comparison.task else ""),
        answer=write_answer(findings),
        estimated=f"{describe_estimand(findings.estimates.estimand)}.",
        warnings=tuple(dict.fromkeys(warnings)),
        sections=drop_empty(
            [
                ranking_section(findings),
                methods_section(findings),
                truth_section(findings),
                model_section(findings),
                provenance_section(findings),
            ]
        ),
    )
