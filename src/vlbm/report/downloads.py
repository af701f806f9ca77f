"""The numbers of a page as files: one record for every method and policy."""

from __future__ import annotations

import csv
import io
import json
import math
from typing import Any

from vlbm.report.findings import Findings
from vlbm.report.parts import Download, Downloads
from vlbm.results.estimate import Estimate
from vlbm.version import VERSION


def downloads(findings: Findings) -> Downloads:
    """The same records as CSV and as JSON; the JSON also has everything else that is known."""
    found = _plain(records(findings))
    whole = {"version": VERSION, "records": found, **findings.comparison.to_json()}
    return Downloads(
        (
            Download("estimates.csv", "text/csv", as_csv(found)),
            Download("estimates.json", "application/json", json.dumps(_plain(whole), indent=1) + "\n"),
        )
    )


def records(findings: Findings) -> list[dict[str, Any]]:
    """Flat, best policy first; what is not known of a method is None."""
    comparison = findings.comparison
    found = []
    for method in comparison.estimates:
        pooled = comparison.pooled(method)
        for index in findings.order:
            row = pooled[index]
            answers = method == findings.method
            above = findings.above
            found.append(
                {
                    "method": method,
                    **_numbers(row),
                    "probability_best": float(findings.best[index]) if answers else None,
                    "probability_above_logged": float(above[index])
                    if answers and above is not None
                    else None,
                    "effective_sample_size": row.details.get("effective_sample_size"),
                    "trust": findings.verdicts[index].level if answers else None,
                    "objections": "; ".join(reason.text for reason in findings.verdicts[index].objections)
                    if answers
                    else "; ".join(row.warnings),
                    "truth": comparison.truth[row.policy]
                    if comparison.truth is not None and comparison.answers(method)
                    else None,
                    "estimand": str(pooled.estimand),
                }
            )
    return found


def as_csv(found: list[dict[str, Any]]) -> str:
    """RFC 4180; numbers as JSON writes them, nothing where there is none."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, fieldnames=list(found[0]))
    writer.writeheader()
    writer.writerows(found)
    return buffer.getvalue()


def _plain(value: Any) -> Any:
    """JSON knows no NaN: what has no value is null."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _numbers(row: Estimate) -> dict[str, Any]:
    return {
        "policy": row.policy,
        "value": row.value,
        "standard_error": row.standard_error,
        "lower": row.lower,
        "upper": row.upper,
        **{f"quantile_{name}": value for name, value in row.quantiles.items()},
        "cvar_0.1": row.cvar(0.1),
        "length": row.length,
    }
