"""Which of several methods to believe on these data, by what their own diagnostics say."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from vlbm.results.diagnostics.trust import Verdict

SAME = 0.05  # back-test errors that differ by less than this share decide nothing


@dataclass(frozen=True)
class Choice:
    """A method, and why it rather than the others; `reliable` says whether any of its estimates is."""

    method: str
    reason: str  # empty where there was nothing to choose from
    reliable: bool


def choose_method(
    verdicts: Mapping[str, Mapping[str, Verdict]], *, errors: Mapping[str, float] | None = None
) -> Choice:
    """The method with the fewest doubtful estimates; of equals, the one that was closest on the held-out log,
    then the one with the fewest cautions, then the one named first.

    `verdicts` are by method and policy; a policy that a method leaves out counts as doubtful. `errors` are
    those of the back-test, as shares; they count where every method has one. No truth is asked.
    """
    policies = {policy for found in verdicts.values() for policy in found}
    doubtful = {name: len(policies) - _count(found, "sound", "caution") for name, found in verdicts.items()}
    cautions = {name: _count(found, "caution") for name, found in verdicts.items()}
    errors = errors if errors and all(name in errors for name in verdicts) else {}
    steps = {name: math.floor(error / SAME) for name, error in errors.items()}
    of = f" of {len(policies)}"
    missing = " or missing" if any(len(found) < len(policies) for found in verdicts.values()) else ""
    criteria = (
        (
            f"it has the fewest doubtful{missing} estimates",
            doubtful,
            {name: f"{n}" for name, n in doubtful.items()},
            of,
        ),
        (
            "it was closest on held-out logged episodes",
            steps,
            {name: f"off by {100 * error:.0f} %" for name, error in errors.items()},
            "",
        ),
        ("it has the fewest cautions", cautions, cautions, of),
    )
    left, reasons = list(verdicts), []
    for claim, amounts, texts, whole in criteria:
        least = min((amounts.get(name, 0) for name in left), default=0)
        best = [name for name in left if amounts.get(name, 0) == least]
        if len(best) < len(left):
            numbers = ", ".join(f"{name} {texts[name]}" for name in left)
            reasons.append(f"{claim} ({numbers}{whole})")
            left = best
    reason = "; of those left, ".join(reasons)
    if len(left) > 1:
        others = "nothing else tells it" if reasons else "no diagnostic tells it"
        tie = f"{others} from {_join(left[1:])}, and it was named first"
        reason = f"{reason}; {tie}" if reason else tie
    return Choice(left[0], reason, doubtful[left[0]] < len(policies))


def _count(verdicts: Mapping[str, Verdict], *levels: str) -> int:
    return sum(verdict.level in levels for verdict in verdicts.values())


def _join(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
