"""What pages and consoles say in the same words: which method to believe, and whether methods agree."""

from __future__ import annotations

import numpy as np

from vlbm.report.findings import Findings
from vlbm.report.numbers import format_number

AGREEING = 0.7  # rank correlation


def describe_choice(findings: Findings) -> str:
    """Which method to believe and why; empty where there is only one."""
    choice, comparison = findings.choice, findings.comparison
    if len(findings.runs) < 2:
        return ""
    if not choice.reason:
        answering = [name for name in findings.runs if comparison.matches_estimand(name)]
        return f"Believe {choice.method} most: it alone answers what was asked." if answering else ""
    if choice.reliable:
        return f"Of the methods, believe {choice.method} most: {choice.reason}."
    doubt = "No method can be relied on here: all estimates are doubtful"
    return f"{doubt}. Shown is {choice.method}: {choice.reason}."


def describe_agreement(findings: Findings) -> str:
    """Whether the other methods rank the policies as this one does, and whether their values are near."""
    if len(findings.runs) < 2:
        return ""
    level = _describe_level(findings)
    if len(findings.estimates) < 2:
        return level and f"The methods differ in level: {level}."
    comparison, methods = findings.comparison, list(findings.runs)
    mine = methods.index(findings.method)
    agreement = comparison.agreement()[mine]
    others = [place for place in range(len(methods)) if place != mine and np.isfinite(agreement[place])]
    if not others:  # no two policies that another method values too
        return level and f"The methods differ in level: {level}."
    agreement = agreement[others]
    lowest = int(np.argmin(agreement))
    number = format_number(float(agreement[lowest]), 2)
    if agreement[lowest] >= AGREEING:
        text = f"The other methods rank the policies much alike (agreement at least {number})"
        return f"{text}, but their levels differ: {level}." if level else f"{text}."
    other = methods[others[lowest]]
    first = comparison.policies[int(np.nanargmax(comparison.values(other)))]
    ranks = f"{comparison.label(other)} ranks otherwise (agreement {number}) and puts {first} first"
    text = f"The methods disagree: {ranks}."
    return f"{text} Their levels differ too: {level}." if level else text


def _describe_level(findings: Findings) -> str:
    """The method whose values are farthest; empty where all are near."""
    if not findings.level_gaps:
        return ""
    gap, write = findings.level_gaps[0], findings.write
    size = write(gap.difference)
    way = f"lie {size} {'higher' if gap.shift > 0 else 'lower'}" if gap.one_sided else f"differ by {size}"
    return f"the values of {gap.other} {way} on average, and all values lie within {write(gap.extent)}"
