"""Trust in an estimate: diagnostics turned into reasons for and against it, in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float

from vlbm.results.estimate import Estimate

Level = Literal["sound", "caution", "doubtful"]

SOME_OUTSIDE = 0.2  # share of imagined steps outside the log
MOSTLY_OUTSIDE = 0.5
WIDE = 0.5  # half width of an interval relative to the range of all policies' values
FEW_EPISODES = 5  # least effective sample size, for importance sampling
OUTSIDE = "outside_the_log"  # key of the share of steps outside the log in an estimate's details
LEAVES = "it leaves the logged data most of the time"
UNTRIED = "its actions were never tried"
RARE_TERMINATION = 0.2  # rate of imagined terminations relative to logged ones


@dataclass(frozen=True)
class Reason:
    """One sentence for or against an estimate."""

    text: str
    level: Level = "sound"
    brief: str = ""  # the same in a few words, for objections


@dataclass(frozen=True)
class Verdict:
    """Reasons for and against one estimate, objections first."""

    reasons: tuple[Reason, ...]

    @property
    def level(self) -> Level:
        levels = {reason.level for reason in self.reasons}
        return "doubtful" if "doubtful" in levels else "caution" if "caution" in levels else "sound"

    @property
    def objections(self) -> tuple[Reason, ...]:
        return tuple(reason for reason in self.reasons if reason.level != "sound")


@dataclass(frozen=True, eq=False)
class Diagnostics:
    """Inputs of a verdict; None where they are not available."""

    candidates: Float[np.ndarray, " policies"]  # the values of all policies
    logged_returns: Float[np.ndarray, " episodes"] | None = None
    logged_terminated: float | None = None  # share of logged episodes that terminated
    outside: float | None = None  # share of steps outside the log, as another method imagined them
    terminated: float | None = None  # share of its imagined episodes that terminated
    model_values: Float[np.ndarray, " models"] | None = None


def assess_trust(row: Estimate, diagnostics: Diagnostics) -> Verdict:
    """All reasons, sorted by severity."""
    # `_support` reports these, with the share of steps.
    reported = [text for text in row.warnings if not text.startswith((LEAVES, UNTRIED))]
    reasons = [Reason(_to_sentence(text), "caution", text.partition(":")[0]) for text in reported]
    for check in (_support, _models, _precision, _extrapolation, _terminations, _weights):
        reasons += check(row, diagnostics)
    order = {"doubtful": 0, "caution": 1, "sound": 2}
    return Verdict(tuple(sorted(reasons, key=lambda reason: order[reason.level])))


def _support(row: Estimate, diagnostics: Diagnostics) -> list[Reason]:
    own = row.details.get(OUTSIDE)
    if own is not None and row.returns is None:
        # The method imagines no steps: what counts is what the policy does where the log has been.
        return _actions(own)
    # What the method itself imagined comes first, so that page and table show the same number.
    outside = diagnostics.outside if own is None else own
    if outside is None:
        return []
    share = _describe_outside(outside)
    brief = f"{_format_percent(outside)} of steps outside the log"
    if outside >= MOSTLY_OUTSIDE:
        return [Reason(_to_sentence(f"{LEAVES}: {share}"), "doubtful", brief)]
    if outside >= SOME_OUTSIDE:
        return [Reason(f"It leaves the logged data at times: {share}.", "caution", brief)]
    return [Reason(f"It stays where the log has data: {share}.")]


def _actions(outside: float) -> list[Reason]:
    brief = f"{_format_percent(outside)} of actions never tried"
    if outside >= MOSTLY_OUTSIDE:
        return [Reason(_to_sentence(*action_warnings(outside)), "doubtful", brief)]
    share = f"at {_format_percent(outside)} of logged observations it does what no logged step resembles"
    if outside >= SOME_OUTSIDE:
        return [Reason(f"Some of its actions were never tried: {share}.", "caution", brief)]
    return [Reason(f"It acts much as the log does: {share}.")]


def support_warnings(outside: float) -> tuple[str, ...]:
    """Warns if most imagined steps lie outside the support of the log."""
    return (f"{LEAVES}: {_describe_outside(outside)}",) if outside >= MOSTLY_OUTSIDE else ()


def action_warnings(outside: float) -> tuple[str, ...]:
    """Warns if most of the policy's actions lie outside the support of the log."""
    if outside < MOSTLY_OUTSIDE:
        return ()
    share = _format_percent(outside)
    return (
        f"{UNTRIED}: at {share} of logged observations it does what no logged step "
        "resembles, and what that earns is guessed",
    )


def _describe_outside(share: float) -> str:
    return f"{_format_percent(share)} of imagined steps lie farther from the log than logged steps do"


def _models(row: Estimate, diagnostics: Diagnostics) -> list[Reason]:
    values = diagnostics.model_values
    if values is None:
        return []
    if len(values) < 2:
        return [Reason("A single model was fitted; how far another would differ is not known.")]
    low, high = _format_number(values.min()), _format_number(values.max())
    numbers = f"{len(values)} models put it between {low} and {high}"
    extent = float(np.ptp(diagnostics.candidates))
    if extent > 0 and np.ptp(values) > WIDE * extent:
        return [Reason(f"The models disagree: {numbers}.", "caution", "models disagree")]
    return [Reason(f"The models agree well enough to tell candidates apart: {numbers}.")]


def _precision(row: Estimate, diagnostics: Diagnostics) -> list[Reason]:
    extent, half = float(np.ptp(diagnostics.candidates)), (row.upper - row.lower) / 2
    if extent > 0 and half > WIDE * extent:
        sizes = (
            f"it reaches {_format_number(half)} either way, and all candidates lie within "
            f"{_format_number(extent)}"
        )
        return [Reason(f"The interval is too wide to rank by: {sizes}.", "caution", "wide interval")]
    return []


def _extrapolation(row: Estimate, diagnostics: Diagnostics) -> list[Reason]:
    returns = diagnostics.logged_returns
    if returns is None or np.ptp(returns) == 0:
        return []
    lowest, highest = float(returns.min()), float(returns.max())
    if lowest <= row.value <= highest:
        extent = f"{_format_number(lowest)} to {_format_number(highest)}"
        return [Reason(f"Returns like this were logged (they go from {extent}).")]
    side, bound = ("above the best", highest) if row.value > highest else ("below the worst", lowest)
    text = f"The value is {side} logged return ({_format_number(bound)}): nothing in the log shows it."
    return [Reason(text, "caution", f"{side} logged return")]


def _terminations(row: Estimate, diagnostics: Diagnostics) -> list[Reason]:
    imagined, logged = diagnostics.terminated, diagnostics.logged_terminated
    if imagined is None or logged is None or logged < 0.1 or imagined >= RARE_TERMINATION * logged:
        return []
    return [
        Reason(
            f"{_format_percent(logged)} of the logged episodes terminated, {_format_percent(imagined)} of "
            "the imagined ones: it lasts longer, or the model misses terminations.",
            "caution",
            "hardly any terminations",
        )
    ]


def _weights(row: Estimate, diagnostics: Diagnostics) -> list[Reason]:
    effective = row.details.get("effective_sample_size")
    if effective is None:
        return []
    if effective < FEW_EPISODES:
        worth = f"worth only {effective:.1f} episodes"
        return [Reason(f"The log is {worth} of this policy.", "doubtful", f"log {worth}")]
    return [Reason(f"The log is worth {effective:,.0f} episodes of this policy.")]


def _format_percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _format_number(value: float) -> str:
    text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return text.replace("-", "\N{MINUS SIGN}", 1) if value < 0 else text


def _to_sentence(warning: str) -> str:
    return warning[:1].upper() + warning[1:] + ("" if warning.endswith((".", "!", "?")) else ".")
