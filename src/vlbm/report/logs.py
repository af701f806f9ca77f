"""What the log itself says beside estimates: its mean return, and how far methods were off on it."""

from __future__ import annotations

from collections.abc import Mapping

from vlbm.report.numbers import Formatter, format_percent
from vlbm.results.backtest import Backtest

BEHAVIOUR = "behaviour (logged)"


def describe_backtests(backtests: Mapping[str, Backtest], write: Formatter) -> tuple[str, ...]:
    """How far every method was off on held-out logged episodes."""
    return tuple(
        f"On your own held-out log, {method} was off by {format_percent(test.error_share)} of the spread of "
        f"logged returns: it said {write(test.estimated)}, and {test.episodes:,} logged episodes earned "
        f"{write(test.logged)} (standard error of the difference {write(test.standard_error)})."
        for method, test in backtests.items()
    )
