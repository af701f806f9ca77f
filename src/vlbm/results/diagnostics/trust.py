"""Why an estimate is or is not to be trusted, in words."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from jaxtyping import Float

from vlbm.results.estimate import Estimate

Level = Literal["sound", "caution", "doubtful"]

SOME_OUTSIDE = 0.2  # share of imagined steps outside the log
MOSTLY_OUTSIDE = 0.5
WIDE = 0.5  # half an interval as a share of the spread of all candidates' values
FEW_EPISODES = 5  # that a log must be worth, for methods that weigh its episodes
OUTSIDE = "outside_the_log"  # the name of that share among an estimate's details
LEAVES = "it leaves the logged data most of the time"
RARELY = 0.2  # imagined endings as a share of logged ones


@dataclass(frozen=True)
class Reason:
    """One sentence for or against an estimate."""

    text: str
    level: Level = "sound"  # what it makes of the estimate
    brief: str = ""  # the same in a few words, where it speaks against the estimate


@dataclass(frozen=True)
class Verdict:
    """All that is known for and against one estimate; what speaks against it comes first."""

    reasons: tuple[Reason, ...]

    @property
    def level(self) -> Level:
        levels = {reason.level for reason in self.reasons}
        return "doubtful" if "doubtful" in levels else "caution" if "caution" in levels else "sound"

    @property
    def objections(self) -> tuple[Reason, ...]:
        return tuple(reason for reason in self.reasons if reason.level != "sound")


@dataclass(frozen=True, eq=False)
class Circumstances:
    """What a verdict can draw on; None where it is not known."""

    candidates: Float[np.ndarray, " policies"]  # the values of all policies
    logged_returns: Float[np.ndarray, " episodes"] | None = None
    logged_ended: float | None = None  # share of logged episodes that the system ended
    outside: float | None = None  # share of the policy's imagined steps
    ended: float | None = None  # share of its imagined episodes
    model_values: Float[np.ndarray, " models"] | None = None


def judge(row: Estimate, known: Circumstances) -> Verdict:
    """Reasons against first, the gravest of all at the top."""
    # The share that the table warns of, where there is one: the page must not tell another.
    known = replace(known, outside=row.details.get(OUTSIDE, known.outside))
    # Leaving the log is judged below, with how much of it there is.
    told = [text for text in row.warnings if not text.startswith(LEAVES)]
    reasons = [Reason(_sentence(text), "caution", text.partition(":")[0]) for text in told]
    for question in (_support, _models, _precision, _extrapolation, _endings, _weights):
        reasons += question(row, known)
    order = {"doubtful": 0, "caution": 1, "sound": 2}
    return Verdict(tuple(sorted(reasons, key=lambda reason: order[reason.level])))


def _support(row: Estimate, known: Circumstances) -> list[Reason]:
    if known.outside is None:
        return []
    share = _outside(known.outside)
    brief = f"{_percent(known.outside)} of steps outside the log"
    if known.outside >= MOSTLY_OUTSIDE:
        return [Reason(_sentence(f"{LEAVES}: {share}"), "doubtful", brief)]
    if known.outside >= SOME_OUTSIDE:
        return [Reason(f"It leaves the logged data at times: {share}.", "caution", brief)]
    return [Reason(f"It stays where the log has data: {share}.")]


def support_warnings(outside: float) -> tuple[str, ...]:
    """What an estimate says of itself where most of what it rests on was never logged."""
    return (f"{LEAVES}: {_outside(outside)}",) if outside >= MOSTLY_OUTSIDE else ()


def action_warnings(outside: float) -> tuple[str, ...]:
    """What an estimate says of itself where the policy's own actions were never tried."""
    if outside < MOSTLY_OUTSIDE:
        return ()
    return (
        f"its actions were never tried: at {_percent(outside)} of logged observations it does what no logged "
        "step resembles, and what that earns is guessed",
    )


def _outside(share: float) -> str:
    return f"{_percent(share)} of its imagined steps lie farther from the log than logged steps do"


def _models(row: Estimate, known: Circumstances) -> list[Reason]:
    values = known.model_values
    if values is None:
        return []
    if len(values) < 2:
        return [Reason("A single model was asked; what another would say is not known.")]
    numbers = f"{len(values)} models put it between {_number(values.min())} and {_number(values.max())}"
    extent = float(np.ptp(known.candidates))
    if extent > 0 and np.ptp(values) > WIDE * extent:
        return [Reason(f"The models disagree: {numbers}.", "caution", "models disagree")]
    return [Reason(f"The models agree well enough to tell candidates apart: {numbers}.")]


def _precision(row: Estimate, known: Circumstances) -> list[Reason]:
    extent, half = float(np.ptp(known.candidates)), (row.upper - row.lower) / 2
    if extent > 0 and half > WIDE * extent:
        share = f"it reaches {_number(half)} either way, and all candidates lie within {_number(extent)}"
        return [Reason(f"The interval is too wide to rank by: {share}.", "caution", "wide interval")]
    return []


def _extrapolation(row: Estimate, known: Circumstances) -> list[Reason]:
    returns = known.logged_returns
    if returns is None or np.ptp(returns) == 0:
        return []
    lowest, highest = float(returns.min()), float(returns.max())
    if lowest <= row.value <= highest:
        return [
            Reason(f"Returns like this were logged (they go from {_number(lowest)} to {_number(highest)}).")
        ]
    side, bound = ("above the best", highest) if row.value > highest else ("below the worst", lowest)
    text = f"The value is {side} logged return ({_number(bound)}): nothing in the log shows it."
    return [Reason(text, "caution", f"{side} logged return")]


def _endings(row: Estimate, known: Circumstances) -> list[Reason]:
    if known.ended is None or known.logged_ended is None or known.logged_ended < 0.1:
        return []
    if known.ended < RARELY * known.logged_ended:
        return [
            Reason(
                f"{_percent(known.logged_ended)} of the logged episodes were ended by the system, "
                f"{_percent(known.ended)} of the imagined ones: it lasts longer, or endings are missed.",
                "caution",
                "hardly any endings",
            )
        ]
    return []


def _weights(row: Estimate, known: Circumstances) -> list[Reason]:
    effective = row.details.get("effective_sample_size")
    if effective is None:
        return []
    if effective < FEW_EPISODES:
        worth = f"worth only {effective:.1f} episodes"
        return [Reason(f"The log is {worth} of this policy.", "doubtful", f"log {worth}")]
    return [Reason(f"The log is worth {effective:,.0f} episodes of this policy.")]


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _number(value: float) -> str:
    text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return text.replace("-", "\N{MINUS SIGN}", 1) if value < 0 else text


def _sentence(warning: str) -> str:
    return warning[:1].upper() + warning[1:] + ("" if warning.endswith((".", "!", "?")) else ".")
