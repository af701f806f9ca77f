"""The page that a decision is made from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vlbm.report.findings import find
from vlbm.report.parts import Page, filled
from vlbm.report.rendering import render, write_html
from vlbm.report.sections.answer import answer, heading
from vlbm.report.sections.methods import methods_section
from vlbm.report.sections.model import model_section
from vlbm.report.sections.provenance import provenance_section
from vlbm.report.sections.ranking import ranking_section
from vlbm.report.sections.truth import truth_section
from vlbm.report.tables import estimated

if TYPE_CHECKING:
    from vlbm.experiments.comparison import Comparison


def write_page(comparison: Comparison, path: Path) -> None:
    write_html(assemble(comparison), path)


def html(comparison: Comparison) -> str:
    return render(assemble(comparison))


def assemble(comparison: Comparison) -> Page:
    """From the answer to where it comes from; sections without anything to say are left out."""
    findings = find(comparison)
    warnings = list(findings.estimates.warnings)
    warnings += [] if comparison.logged is None else comparison.logged.warnings
    return Page(
        title=heading(findings),
        eyebrow="Off-policy evaluation" + (f" · {comparison.task}" if comparison.task else ""),
        answer=answer(findings),
        estimated=f"{estimated(findings.estimates.estimand)}.",
        warnings=tuple(dict.fromkeys(warnings)),
        sections=filled(
            [
                ranking_section(findings),
                methods_section(findings),
                truth_section(findings),
                model_section(findings),
                provenance_section(findings),
            ]
        ),
    )
