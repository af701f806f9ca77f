"""The answer, in a few sentences."""

from __future__ import annotations

import numpy as np
from markupsafe import Markup, escape

from vlbm.report.findings import Findings
from vlbm.report.logs import describe_backtests
from vlbm.report.numbers import format_probability, spell_out
from vlbm.report.sentences import describe_agreement, describe_choice

SETTLED = 0.8  # probability of being best from which the first place counts as settled


def write_answer(findings: Findings) -> tuple[Markup, ...]:
    """The best policy and who says so, how sure that is, and objections to it."""
    mine = {name: test for name, test in findings.backtests.items() if name == findings.method}
    sentences = [
        _describe_best(findings),
        _describe_objection(findings),
        _describe_first_place(findings),
        escape(describe_choice(findings)),
        escape(describe_agreement(findings)),
        *map(escape, describe_backtests(mine, findings.write)),
    ]
    return tuple(sentence for sentence in sentences if sentence)


def write_heading(findings: Findings) -> str:
    best = findings.ranked[0].policy
    return f"{best} is estimated best" if len(findings.estimates) > 1 else f"The value of {best}"


def _describe_best(findings: Findings) -> Markup:
    best, write = findings.ranked[0], findings.write
    rank = f"best of {len(findings.estimates)} " if len(findings.estimates) > 1 else ""
    parts = [
        Markup("<strong>{}</strong> is estimated {}by {}: <strong>{}</strong>, {} {} to {}").format(
            best.policy,
            rank,
            findings.method,
            write(best.value),
            findings.interval,
            write(best.lower),
            write(best.upper),
        )
    ]
    if findings.above is not None:
        probability = _say_probability(float(findings.above[findings.order[0]]))
        parts.append(Markup("it beats the behaviour policy with probability {}").format(probability))
    leaving = findings.count_outside()
    if leaving:
        which = "candidate leaves" if leaving == 1 else "candidates leave"
        parts.append(Markup("{} {} the logged data most of the time").format(spell_out(leaving), which))
    return Markup("; ").join(parts) + "."


def _say_probability(probability: float) -> str:
    return format_probability(probability).replace("< ", "below ").replace("> ", "above ")


def _describe_objection(findings: Findings) -> Markup:
    objections = findings.verdicts[findings.order[0]].objections
    if not objections:
        return Markup()
    warning = "Do not rely on it:" if objections[0].level == "doubtful" else "With caution:"
    text = objections[0].text
    if not text.startswith("Q "):
        text = text[:1].lower() + text[1:]
    return Markup("<strong>{}</strong> {}").format(warning, text)


def _describe_first_place(findings: Findings) -> Markup:
    """Who else may be best; where this is not who comes first by value, why."""
    if len(findings.estimates) < 2:
        return Markup()
    first = findings.order[0]
    likely = np.argsort(-findings.best, kind="stable").tolist()
    if float(findings.best[first]) >= SETTLED:
        return Markup()
    rival = likely[1] if likely[0] == first else likely[0]
    text = Markup("The first place is not settled: {} is best with probability {}, {} with {}").format(
        findings.estimates[first].policy,
        _say_probability(float(findings.best[first])),
        findings.estimates[rival].policy,
        _say_probability(float(findings.best[rival])),
    )
    if rival == likely[0]:
        place = findings.order.index(rival) + 1
        text += Markup(
            ", though its value is only number {}: its interval is wide and reaches high, which speaks for "
            "more data rather than for this policy"
        ).format(place)
    return text + "."
