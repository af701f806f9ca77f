"""Formatting of numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

Formatter = Callable[[float], str]

NOTHING = "\N{EN DASH}"  # where there is no number
MINUS = "\N{MINUS SIGN}"
PERCENT = "\N{NO-BREAK SPACE}%"


def make_formatter(values: Iterable[float]) -> Formatter:
    """A formatter with the same decimals for all values: four digits for the largest."""
    largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    if largest >= 1e9 or 0 < largest < 1e-3:
        return lambda value: f"{value:.3g}".replace("-", MINUS)
    digits = 3 - math.floor(math.log10(largest)) if largest > 0 else 0
    return lambda value: format_number(value, min(max(digits, 0), 4))


def format_number(value: float, digits: int) -> str:
    """Thousands separators, a true minus, no minus before zero; a dash for NaN."""
    if not math.isfinite(value):
        return NOTHING
    return f"{value:z,.{digits}f}".replace("-", MINUS)


def format_known(value: float | None, write: Formatter) -> str:
    """A dash for what is not known."""
    return NOTHING if value is None else write(value)


def format_short(value: float) -> str:
    """For axes: no trailing zeros."""
    if not math.isfinite(value):
        return NOTHING
    size = abs(value)
    if size != 0 and (size >= 1e7 or size < 1e-4):
        return f"{value:.3g}".replace("-", MINUS)
    text = f"{value:,.10f}".rstrip("0").rstrip(".") if size < 1e7 else f"{value:,.0f}"
    return ("0" if text in ("-0", "") else text).replace("-", MINUS)


def format_percent(share: float, digits: int = 0) -> str:
    return NOTHING if not math.isfinite(share) else f"{share:.{digits}%}".replace("%", PERCENT)


def format_confidence(share: float) -> str:
    """As many digits as it takes: 95 %, 99.9 %."""
    return f"{100 * share:.10g}{PERCENT}"


def format_probability(value: float) -> str:
    """Two decimals, and never 0 or 1: the probability is itself an estimate."""
    if not math.isfinite(value):
        return NOTHING
    return "< 0.01" if value < 0.005 else "> 0.99" if value >= 0.995 else f"{value:.2f}"


def format_count(amount: int, noun: str) -> str:
    return f"{amount:,} {noun}{'' if amount == 1 else 's'}"


WORDS = (
    "no",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
)


def spell_out(amount: int) -> str:
    return WORDS[amount] if amount < len(WORDS) else f"{amount:,}"
