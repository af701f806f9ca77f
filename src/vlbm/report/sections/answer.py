"""The answer, in a sentence or two."""

from __future__ import annotations

import numpy as np
from markupsafe import Markup

from vlbm.report.findings import Findings
from vlbm.report.numbers import format_number, format_probability, spell_out
from vlbm.results.diagnostics.trust import MOSTLY_OUTSIDE

SETTLED = 0.8  # probability of being best from which the first place counts as settled
AGREEING = 0.7  # rank correlation


def write_answer(findings: Findings) -> tuple[Markup, ...]:
    """The best policy, how sure that is, and objections to it."""
    sentences = [
        _describe_best(findings),
        _describe_objection(findings),
        _describe_first_place(findings),
        _describe_agreement(findings),
    ]
    return tuple(sentence for sentence in sentences if sentence)


def write_heading(findings: Findings) -> str:
    best = findings.ranked[0].policy
    return f"{best} is estimated best" if len(findings.estimates) > 1 else f"The value of {best}"


def _describe_best(findings: Findings) -> Markup:
    best, write = findings.ranked[0], findings.write
    claim = (
        f" is estimated best of {len(findings.estimates)}: "
        if len(findings.estimates) > 1
        else " is estimated at "
    )
    parts = [
        Markup("<strong>{}</strong>{}<strong>{}</strong>, {} {} to {}").format(
            best.policy, claim, write(best.value), findings.interval, write(best.lower), write(best.upper)
        )
    ]
    if findings.above is not None:
        probability_text = _say_probability(float(findings.above[findings.order[0]]))
        parts.append(Markup("it beats the behaviour policy with probability {}").format(probability_text))
    leaving = count_outside(findings)
    if leaving:
        word = spell_out(leaving)
        which = "candidate leaves" if leaving == 1 else "candidates leave"
        parts.append(Markup("{} {} the logged data most of the time").format(word, which))
    return Markup("; ").join(parts) + "."


def _say_probability(probability_text: float) -> str:
    return format_probability(probability_text).replace("< ", "below ").replace("> ", "above ")


def count_outside(findings: Findings) -> int:
    """The number of policies that are outside the log most of the time."""
    seen = [findings.imagined(row.policy) for row in findings.estimates]
    return sum(part is not None and (part.outside_share or 0.0) >= MOSTLY_OUTSIDE for part in seen)


def _describe_objection(findings: Findings) -> Markup:
    objections = findings.verdicts[findings.order[0]].objections
    if not objections:
        return Markup()
    warning = "Do not rely on it:" if objections[0].level == "doubtful" else "With caution:"
    text = objections[0].text
    return Markup("<strong>{}</strong> {}").format(warning, text[:1].lower() + text[1:])


def _describe_first_place(findings: Findings) -> Markup:
    if len(findings.estimates) < 2:
        return Markup()
    likely = np.argsort(-findings.best, kind="stable")[:2]
    first = float(findings.best[findings.order[0]])
    if first >= SETTLED:
        return Markup()
    return Markup("The first place is not settled: {} is best with probability {}, {} with {}.").format(
        findings.estimates[int(likely[0])].policy,
        _say_probability(float(findings.best[likely[0]])),
        findings.estimates[int(likely[1])].policy,
        _say_probability(float(findings.best[likely[1]])),
    )


def _describe_agreement(findings: Findings) -> Markup:
    comparison = findings.comparison
    methods = list(comparison.estimates)
    if len(methods) < 2 or len(findings.estimates) < 2:
        return Markup()
    mine = methods.index(findings.method)
    others = [place for place in range(len(methods)) if place != mine]
    agreement = comparison.agreement()[mine, others]
    lowest = int(np.argmin(agreement))
    if agreement[lowest] >= AGREEING:
        return Markup("The other methods rank the policies much alike (agreement at least {}).").format(
            format_number(float(agreement[lowest]), 2)
        )
    other = methods[others[lowest]]
    first = comparison.policies[int(np.argmax(comparison.values(other)))]
    return Markup("The methods disagree: {} ranks otherwise (agreement {}) and puts {} first.").format(
        comparison.label(other), format_number(float(agreement[lowest]), 2), first
    )
