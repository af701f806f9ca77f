"""The numbers of a page as files: one record for every method and policy."""

from __future__ import annotations

import csv
import io
import json
import math
from typing import Any

import numpy as np

from vlbm.report.findings import Findings
from vlbm.report.parts import Download, Downloads
from vlbm.results.estimate import Estimate
from vlbm.results.estimates import Estimates
from vlbm.version import VERSION


def make_downloads(findings: Findings) -> Downloads:
    """The records as CSV and as JSON, which also has the whole comparison."""
    found = _replace_nan(make_records(findings))
    names = [row.policy for row in findings.ranked]
    pairs = findings.pairs[np.ix_(findings.order, findings.order)]
    whole = {
        "version": VERSION,
        "records": found,
        "believed": vars(findings.choice),
        # Row by row, that this policy is worth more than that of the column.
        "pairs": {"policies": names, "probability_above": pairs.round(4).tolist()},
        **findings.comparison.to_json(),
    }
    return Downloads(
        (
            Download("estimates.csv", "text/csv", to_csv(found)),
            Download("estimates.json", "application/json", json.dumps(_replace_nan(whole), indent=1) + "\n"),
        )
    )


def make_records(findings: Findings) -> list[dict[str, Any]]:
    """Flat records, best policy first; None for what a method does not have."""
    comparison = findings.comparison
    found = []
    names = [row.policy for row in findings.estimates]
    for method, pooled in findings.runs.items():
        chosen = method == findings.method
        for row in _in_order(findings, pooled):
            index = names.index(row.policy) if chosen else -1
            above = findings.above
            verdict = findings.verdicts_by_method[method][row.policy]
            found.append(
                {
                    "method": method,
                    **_list_numbers(row),
                    "probability_best": float(findings.best[index]) if chosen else None,
                    "probability_above_logged": float(above[index]) if chosen and above is not None else None,
                    "effective_sample_size": row.details.get("effective_sample_size"),
                    "trust": verdict.level,
                    "objections": "; ".join(reason.text for reason in verdict.objections),
                    "truth": comparison.truth[row.policy]
                    if comparison.truth is not None and comparison.matches_estimand(method)
                    else None,
                    "estimand": str(pooled.estimand),
                }
            )
    return found


def _in_order(findings: Findings, pooled: Estimates) -> list[Estimate]:
    """The rows of another method as the page orders the policies; it may lack some, or have others."""
    place = {row.policy: number for number, row in enumerate(findings.ranked)}
    return sorted(pooled, key=lambda row: place.get(row.policy, len(place)))


def to_csv(found: list[dict[str, Any]]) -> str:
    """RFC 4180; None is empty."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, fieldnames=list(found[0]))
    writer.writeheader()
    writer.writerows(found)
    return buffer.getvalue()


def _replace_nan(value: Any) -> Any:
    """NaN and infinities become None, as JSON has neither."""
    if isinstance(value, dict):
        return {name: _replace_nan(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_nan(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _list_numbers(row: Estimate) -> dict[str, Any]:
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
