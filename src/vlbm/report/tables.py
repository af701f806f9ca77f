"""Estimates as a table for people at a terminal."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from vlbm.estimate import Estimates

BAR = 26  # characters that an interval is drawn in


def estimates_table(estimates: Estimates, truth: Mapping[str, float] | None = None) -> Table:
    """Best policy first, each with its interval as numbers and as a picture."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    bounds = [bound for row in estimates for bound in (row.lower, row.upper)]
    if truth is not None:
        bounds += list(truth.values())
    low, high = min(bounds), max(bounds)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("", justify="right", style="dim")
    table.add_column("policy", style="bold")
    for heading in ("value", "se", "lower", "upper", "CVaR 10%", "length"):
        table.add_column(heading, justify="right")
    if truth is not None:
        table.add_column("true", justify="right", style="green")
    table.add_column(f"{low:.4g}".ljust(BAR - len(f"{high:.4g}")) + f"{high:.4g}", style="cyan", no_wrap=True)
    for position, row in enumerate(estimates.ranked(), start=1):
        cells = [row.value, row.standard_error, row.lower, row.upper, row.cvar(), row.length]
        texts = [_number(cell) for cell in cells]
        true = None if truth is None else truth[row.policy]
        if true is not None:
            texts.append(_number(true))
        picture = _picture(row.lower, row.value, row.upper, true, low, high)
        table.add_row(str(position), Text(row.policy), *texts, picture)
    return table


def print_estimates(estimates: Estimates, console: Console, truth: Mapping[str, float] | None = None) -> None:
    console.print(estimates_table(estimates, truth))
    caption = f"{estimates.method}, discount {estimates.discount:g}, seed {estimates.seed}"
    if estimates.seconds:
        seconds = estimates.seconds
        caption += f"; fitted in {seconds['fit']:.0f} s, evaluated in {seconds['evaluate']:.0f} s"
    console.print(caption, style="dim", highlight=False)
    for warning in (
        *estimates.warnings,
        *(f"{row.policy}: {text}" for row in estimates for text in row.warnings),
    ):
        console.print(f"warning: {warning}", style="yellow", highlight=False, markup=False)


def as_text(estimates: Estimates) -> str:
    """The table as plain text, for print()."""
    from rich.console import Console

    buffer = io.StringIO()
    Console(file=buffer, width=120, color_system=None).print(estimates_table(estimates))
    return buffer.getvalue().rstrip()


def _number(value: float) -> str:
    digits = 0 if abs(value) >= 1000 else 1 if abs(value) >= 10 else 3
    return f"{value:,.{digits}f}"


def _picture(lower: float, value: float, upper: float, true: float | None, low: float, high: float):
    from rich.text import Text

    def place(number: float) -> int:
        share = (number - low) / (high - low) if high > low else 0.5
        return min(max(round(share * (BAR - 1)), 0), BAR - 1)

    characters = [" "] * BAR
    for index in range(place(lower), place(upper) + 1):
        characters[index] = "━"
    characters[place(value)] = "●"
    picture = Text("".join(characters), style="cyan")
    if true is not None:
        index = place(true)
        picture = Text.assemble(
            ("".join(characters[:index]), "cyan"),
            ("◆" if characters[index] != "●" else "◉", "green"),
            ("".join(characters[index + 1 :]), "cyan"),
        )
    return picture
