"""Estimates as one self-contained HTML page."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from vlbm.report.tables import decimals
from vlbm.storage import write_text

if TYPE_CHECKING:
    from vlbm.estimate import Estimate, Estimates

Formatter = Callable[[float], str]

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #59636e; --line: #d6dbe1; --paper: #fff;
  --value: #0b62b5; --band: #a9cdf0; --true: #b34700; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8ebef; --soft: #9aa4af; --line: #343a41;
  --paper: #15181c; --value: #79b8ff; --band: #2c4a6b; --true: #ffab70; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 64rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; line-height: 1.25; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
p.answer { font-size: 1.15rem; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; }
th, td { padding: .4rem .6rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { font-weight: 600; color: var(--soft); font-size: .85rem; }
th.name, td.name { text-align: left; } td { font-variant-numeric: tabular-nums; }
td.bar { min-width: 16rem; width: 40%; } svg { display: block; width: 100%; height: 1.4rem; }
.band { fill: var(--band); } .value { fill: var(--value); }
.true { fill: none; stroke: var(--true); stroke-width: 2; }
footer, .note { color: var(--soft); font-size: .9rem; } pre { overflow-x: auto; font-size: .85rem; }
li.warning::marker { content: "⚠ "; }
"""


def write_page(estimates: Estimates, path: Path, *, truth: Mapping[str, float] | None = None) -> None:
    write_text(path, page(estimates, truth=truth))


def page(estimates: Estimates, *, truth: Mapping[str, float] | None = None) -> str:
    """The whole page; every name that came from a user is escaped."""
    best = estimates.ranked()[0]
    number = _formatter(estimates, truth)
    answer = (
        f"<strong>{escape(best.policy)}</strong> is estimated best of {len(estimates)}: "
        f"{number(best.value)}, 95&nbsp;% interval {number(best.lower)} to {number(best.upper)}."
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(best.policy)} is estimated best</title>
<style>{STYLE}</style>
</head>
<body>
<h1>Off-policy evaluation</h1>
<p class="answer">{answer}</p>
{_warnings(estimates)}
<h2>Ranking</h2>
<div class="scroll">{_ranking(estimates, truth, number)}</div>
{_agreement(estimates, truth)}
<p class="note">Value: mean discounted return of the imagined episodes. CVaR: mean of the worst tenth of
them. Band: 95&nbsp;% interval of the value, which covers the luck of imagined
episodes{_disagreement(estimates)}.</p>
<h2>Provenance</h2>
<pre>{escape(json.dumps(_provenance(estimates), indent=2))}</pre>
</body>
</html>
"""


def _ranking(estimates: Estimates, truth: Mapping[str, float] | None, number: Formatter) -> str:
    bounds = [bound for row in estimates for bound in (row.lower, row.upper)] + list((truth or {}).values())
    low, high = min(bounds), max(bounds)
    headings = ["value", "standard error", "CVaR", "length"] + (["true"] if truth is not None else [])
    head = "".join(f"<th scope='col'>{heading}</th>" for heading in headings)
    rows = []
    for row in estimates.ranked():
        true = None if truth is None else truth[row.policy]
        texts = [number(value) for value in (row.value, row.standard_error, row.cvar())]
        texts += [f"{row.length:,.0f}"] + ([] if true is None else [number(true)])
        cells = "".join(f"<td>{text}</td>" for text in texts)
        rows.append(
            f"<tr><th scope='row' class='name'>{escape(row.policy)}</th>{cells}"
            f"<td class='bar'>{_bar(row, true, low, high, number)}</td></tr>"
        )
    return (
        f"<table><thead><tr><th scope='col' class='name'>policy</th>{head}"
        f"<th scope='col'>{number(low)} to {number(high)}</th></tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table>"
    )


def _bar(row: Estimate, true: float | None, low: float, high: float, number: Formatter) -> str:
    def place(value: float) -> float:
        return 2.0 + 96.0 * ((value - low) / (high - low) if high > low else 0.5)

    label = f"{number(row.value)}, from {number(row.lower)} to {number(row.upper)}"
    mark = ""
    if true is not None:
        label += f", true {number(true)}"
        mark = f"<rect class='true' x='{place(true) - 0.6:.2f}%' y='15%' width='1.2%' height='70%'/>"
    width = max(place(row.upper) - place(row.lower), 0.4)
    return (
        f"<svg role='img' aria-label='{label}'><title>{label}</title>"
        f"<rect class='band' x='{place(row.lower):.2f}%' y='30%' width='{width:.2f}%' height='40%' rx='3'/>"
        f"<circle class='value' cx='{place(row.value):.2f}%' cy='50%' r='5'/>{mark}</svg>"
    )


def _agreement(estimates: Estimates, truth: Mapping[str, float] | None) -> str:
    if truth is None or len(estimates) < 2:
        return ""
    import numpy as np

    from vlbm.metrics import absolute_error, rank_correlation, regret

    true = np.array([truth[row.policy] for row in estimates])
    return (
        f"<p>Against the truth (open marks): rank correlation "
        f"<strong>{rank_correlation(estimates.values, true):.3f}</strong>, regret@1 "
        f"<strong>{regret(estimates.values, true):.3f}</strong> of the range, mean absolute error "
        f"<strong>{absolute_error(estimates.values, true):.4g}</strong>.</p>"
    )


def _warnings(estimates: Estimates) -> str:
    items = "".join(f"<li class='warning'>{escape(text)}</li>" for text in estimates.all_warnings)
    return f"<ul>{items}</ul>" if items else ""


def _disagreement(estimates: Estimates) -> str:
    if estimates.settings.get("models", 1) > 1:
        return " and how far the fitted models disagree"
    return "; how far another model would differ is not in it (fit several: <code>--set models=3</code>)"


def _provenance(estimates: Estimates) -> dict:
    facts = estimates.to_json()
    del facts["policies"]
    return facts


def _formatter(estimates: Estimates, truth: Mapping[str, float] | None) -> Formatter:
    """How every return on the page is written: with the same number of decimals."""
    bounds = [bound for row in estimates for bound in (row.lower, row.upper)]
    digits = decimals([*bounds, *(truth or {}).values()])
    return lambda value: f"{value:,.{digits}f}"
