"""Estimates as a table for the terminal and for notebooks."""

from __future__ import annotations

import html
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from vlbm.estimand import Estimand
    from vlbm.results.estimate import Estimates

BAR = 26  # characters that an interval is drawn in
HUGE = 1e9  # numbers from here on are written with an exponent


def choose_decimals(values: Sequence[float]) -> int:
    """Common number of decimals for numbers of this size."""
    largest = max((abs(value) for value in values if abs(value) < HUGE), default=0.0)
    return 0 if largest >= 10_000 else 1 if largest >= 100 else 3


def format_value(value: float, digits: int) -> str:
    """A number with these decimals, or with an exponent if it is huge."""
    return f"{value:,.{digits}f}" if abs(value) < HUGE else f"{value:.2e}"


def estimates_table(
    estimates: Estimates, truth: Mapping[str, float] | None = None, width: int = 120
) -> Table:
    """Best policy first, each with its interval as numbers and, where there is room, as a picture."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    ranked = estimates.rank()
    bounds = [bound for row in ranked for bound in (row.lower, row.upper)]
    bounds += [] if truth is None else list(truth.values())
    low, high = min(bounds), max(bounds)
    digits = choose_decimals(bounds)
    columns = {
        "value": [row.value for row in ranked],
        "se": [row.standard_error for row in ranked],
        "lower": [row.lower for row in ranked],
        "upper": [row.upper for row in ranked],
    }
    if truth is not None:
        columns["true"] = [truth[row.policy] for row in ranked]
    columns |= {"CVaR 10%": [row.cvar() for row in ranked], "length": [row.length for row in ranked]}
    cells = {name: [format_value(value, digits) for value in values] for name, values in columns.items()}
    cells["length"] = [f"{value:,.0f}" for value in columns["length"]]

    def room(chosen: Mapping[str, list[str]]) -> int:
        numbers = sum(max(len(name), *map(len, texts)) + 3 for name, texts in chosen.items())
        return width - numbers - max(len(row.policy) for row in ranked) - 12

    # In a narrow terminal columns are left out, least important first.
    for name in ("length", "CVaR 10%"):
        if room(cells) < BAR and name in cells:
            del cells[name]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    table.add_column("", justify="right", style="dim", no_wrap=True)
    table.add_column("policy", style="bold", overflow="fold")
    for name in cells:
        table.add_column(name, justify="right", no_wrap=True, style="green" if name == "true" else None)
    drawn = room(cells) >= BAR
    if drawn:
        heading = f"{low:.4g}".ljust(BAR - len(f"{high:.4g}")) + f"{high:.4g}"
        table.add_column(heading, style="cyan", no_wrap=True)
    for index, row in enumerate(ranked):
        true = None if truth is None else truth[row.policy]
        picture = _draw_interval(row.lower, row.value, row.upper, true, low, high)
        texts = [column[index] for column in cells.values()]
        table.add_row(str(index + 1), Text(row.policy), *texts, *([picture] if drawn else []))
    return table


def describe_estimand(estimand: Estimand) -> str:
    return f"Estimated: {estimand}"


def describe_run(estimates: Estimates) -> str:
    """Method, discount, seed and times, in a line."""
    made = f"{estimates.method}, discount {estimates.discount:g}, seed {estimates.seed}"
    seconds = estimates.seconds
    if not seconds:
        return made
    return f"{made}; fitted in {seconds['fit']:.0f} s, evaluated in {seconds['evaluate']:.0f} s"


def print_estimates(estimates: Estimates, console: Console, truth: Mapping[str, float] | None = None) -> None:
    console.print(describe_estimand(estimates.estimand), highlight=False)
    console.print(estimates_table(estimates, truth, console.width))
    console.print(describe_run(estimates), style="dim", highlight=False)
    for warning in estimates.all_warnings:
        console.print(f"warning: {warning}", style="yellow", highlight=False, markup=False)


def as_text(estimates: Estimates) -> str:
    """What the command line prints, as plain text, for print()."""
    from rich.console import Console

    buffer = io.StringIO()
    print_estimates(estimates, Console(file=buffer, width=120, color_system=None))
    return buffer.getvalue().rstrip()


def as_html(estimates: Estimates) -> str:
    """The same for notebooks."""
    ranked = estimates.rank()
    digits = choose_decimals([bound for row in ranked for bound in (row.lower, row.upper)])
    heading = "".join(f"<th>{name}</th>" for name in ("", "policy", "value", "se", "lower", "upper"))
    lines = []
    for place, row in enumerate(ranked, start=1):
        numbers = (row.value, row.standard_error, row.lower, row.upper)
        cells = (str(place), html.escape(row.policy), *(format_value(number, digits) for number in numbers))
        lines.append(f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    notes = [describe_run(estimates), *(f"warning: {text}" for text in estimates.all_warnings)]
    below = "".join(f"<p>{html.escape(note)}</p>" for note in notes)
    above = f"<p>{html.escape(describe_estimand(estimates.estimand))}</p>"
    return f"{above}<table><thead><tr>{heading}</tr></thead><tbody>{''.join(lines)}</tbody></table>{below}"


def _draw_interval(lower: float, value: float, upper: float, true: float | None, low: float, high: float):
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
