"""Estimates as a table for the terminal and for notebooks."""

from __future__ import annotations

import html
import io
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vlbm.report.logs import BEHAVIOUR, describe_backtests
from vlbm.report.numbers import NOTHING, format_confidence, make_formatter
from vlbm.results.diagnostics.verdicts import MARKS, judge, list_objections

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from vlbm.estimand import Estimand
    from vlbm.results.backtest import Backtest
    from vlbm.results.diagnostics.trust import Verdict
    from vlbm.results.estimates import Estimates

BAR = 26  # characters that an interval is drawn in
HUGE = 1e9  # numbers from here on are written with an exponent
PICTURE = "cyan"
COLOURS = {"sound": "", "caution": "yellow", "doubtful": "red"}


def choose_decimals(values: Sequence[float]) -> int:
    """Common number of decimals for numbers of this size."""
    largest = max((abs(value) for value in values if abs(value) < HUGE), default=0.0)
    return 0 if largest >= 10_000 else 1 if largest >= 100 else 3


def format_value(value: float | None, digits: int) -> str:
    """A number with these decimals, or with an exponent if it is huge; no minus zero, a dash for none."""
    if value is None or value != value:
        return NOTHING
    return f"{value:z,.{digits}f}" if abs(value) < HUGE else f"{value:.2e}"


@dataclass(frozen=True, eq=False)
class TableRow:
    """A policy, or the behaviour policy, as tables show it."""

    rank: str
    policy: str
    value: float
    standard_error: float
    lower: float
    upper: float
    true: float | None = None
    cvar: float | None = None
    length: float | None = None
    level: str = "sound"  # of the verdict


def list_rows(
    estimates: Estimates, verdicts: Mapping[str, Verdict], truth: Mapping[str, float] | None = None
) -> list[TableRow]:
    """Best first, with what was logged in its place among them."""
    rows = [
        TableRow(
            str(place),
            row.policy,
            row.value,
            row.standard_error,
            row.lower,
            row.upper,
            None if truth is None else truth[row.policy],
            row.cvar(),
            row.length,
            verdicts[row.policy].level,
        )
        for place, row in enumerate(estimates.rank(), start=1)
    ]
    seen = estimates.behaviour
    if seen is not None:
        better = sum(row.value >= seen.value for row in rows)
        logged = TableRow("", BEHAVIOUR, seen.value, seen.standard_error, seen.lower, seen.upper)
        rows.insert(better, logged)
    return rows


def estimates_table(
    estimates: Estimates,
    truth: Mapping[str, float] | None = None,
    width: int = 120,
    verdicts: Mapping[str, Verdict] | None = None,
) -> Table:
    """Best policy first, each with its interval as numbers and, where there is room, as a picture."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    rows = list_rows(estimates, judge(estimates) if verdicts is None else verdicts, truth)
    bounds = [bound for row in rows for bound in (row.lower, row.upper)]
    bounds += [] if truth is None else list(truth.values())
    low, high = min(bounds), max(bounds)
    digits = choose_decimals(bounds)
    columns: dict[str, list[float | None]] = {
        "value": [row.value for row in rows],
        "se": [row.standard_error for row in rows],
        "lower": [row.lower for row in rows],
        "upper": [row.upper for row in rows],
        "true": [row.true for row in rows],
        "CVaR 10%": [row.cvar for row in rows],
        "length": [row.length for row in rows],
    }
    # What nobody knows has no column.
    cells = {
        name: [format_value(value, 0 if name == "length" else digits) for value in values]
        for name, values in columns.items()
        if any(value is not None for value in values)
    }
    marked = any(MARKS[row.level] for row in rows)

    def room(chosen: Mapping[str, list[str]]) -> int:
        numbers = sum(max(len(name), *map(len, texts)) + 3 for name, texts in chosen.items())
        return width - numbers - max(len(row.policy) for row in rows) - 12 - 3 * marked

    # In a narrow terminal columns are left out, least important first.
    for name in ("length", "CVaR 10%"):
        if room(cells) < BAR and name in cells:
            del cells[name]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    table.add_column("", justify="right", style="dim", no_wrap=True)
    table.add_column("policy", overflow="fold")
    if marked:
        table.add_column("", no_wrap=True)
    for name in cells:
        table.add_column(name, justify="right", no_wrap=True, style="green" if name == "true" else None)
    drawn = room(cells) >= BAR
    if drawn:
        heading = f"{low:.4g}".ljust(BAR - len(f"{high:.4g}")) + f"{high:.4g}"
        table.add_column(heading, style=PICTURE, no_wrap=True)
    for index, row in enumerate(rows):
        picture = _draw_interval(row.lower, row.value, row.upper, row.true, low, high)
        texts = [column[index] for column in cells.values()]
        mark = [Text(MARKS[row.level], style=COLOURS[row.level])] if marked else []
        label = Text(row.policy, style="bold" if row.rank else "italic")
        table.add_row(row.rank, label, *mark, *texts, *([picture] if drawn else []))
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


def explain_marks(levels: Collection[str], *, behaviour: bool) -> list[str]:
    """What marks in a table mean, as far as they occur."""
    marks = [f"{MARKS[level]} {level}" for level in ("caution", "doubtful") if level in levels]
    parts = [f"{', '.join(marks)}: reasons below"] if marks else []
    return [*parts, *([f"{BEHAVIOUR}: mean logged return, not estimated"] if behaviour else [])]


def explain_table(
    estimates: Estimates, verdicts: Mapping[str, Verdict], *, drawn: bool = False, truth: bool = False
) -> str:
    """What stands in the columns; `drawn` if intervals are pictures too."""
    confidence = format_confidence(estimates.confidence).replace("\N{NO-BREAK SPACE}", " ")
    interval = f"lower, upper, ━●━: {confidence} interval and value"
    parts = ["se: standard error", interval if drawn else f"lower, upper: {confidence} interval"]
    parts += ["◆: true value (◉ where it is the estimate)"] if drawn and truth else []
    levels = {verdict.level for verdict in verdicts.values()}
    return "; ".join([*parts, *explain_marks(levels, behaviour=estimates.behaviour is not None)])


def list_notes(estimates: Estimates, verdicts: Mapping[str, Verdict]) -> list[tuple[str, str]]:
    """What speaks against the estimates, each with its level: the same that the page says."""
    general = [("warning", text) for text in dict.fromkeys(estimates.warnings)]
    return [*general, *list_objections(verdicts)]


def print_estimates(estimates: Estimates, console: Console, truth: Mapping[str, float] | None = None) -> None:
    verdicts = judge(estimates)
    console.print(describe_estimand(estimates.estimand), highlight=False)
    table = estimates_table(estimates, truth, console.width, verdicts)
    console.print(table)
    drawn = table.columns[-1].style == PICTURE
    legend = explain_table(estimates, verdicts, drawn=drawn, truth=truth is not None)
    console.print(legend, style="dim", highlight=False)
    console.print(describe_run(estimates), style="dim", highlight=False)
    print_notes(list_notes(estimates, verdicts), console)
    print_backtests(list_backtests(estimates), [row.value for row in estimates], console)


def print_notes(notes: Sequence[tuple[str, str]], console: Console) -> None:
    for level, text in notes:
        style = COLOURS.get(level, "yellow")
        console.print(f"{level}: {text}", style=style, highlight=False, markup=False)


def list_backtests(estimates: Estimates) -> Mapping[str, Backtest]:
    """That of the method; empty without one."""
    return {} if estimates.backtest is None else {estimates.method: estimates.backtest}


def print_backtests(backtests: Mapping[str, Backtest], values: Sequence[float], console: Console) -> None:
    for sentence in describe_backtests(backtests, make_formatter(values)):
        console.print(sentence, highlight=False, markup=False)


def as_text(estimates: Estimates) -> str:
    """What the command line prints, as plain text, for print()."""
    from vlbm.terminal import SafeConsole

    buffer = io.StringIO()
    print_estimates(estimates, SafeConsole(file=buffer, width=120, color_system=None))
    return buffer.getvalue().rstrip()


def as_html(estimates: Estimates) -> str:
    """The same for notebooks."""
    verdicts = judge(estimates)
    rows = list_rows(estimates, verdicts)
    digits = choose_decimals([bound for row in rows for bound in (row.lower, row.upper)])
    known = [("CVaR 10%", "cvar", digits), ("length", "length", 0)]
    known = [entry for entry in known if any(getattr(row, entry[1]) is not None for row in rows)]
    names = ("", "policy", "", "value", "se", "lower", "upper", *(name for name, *_ in known))
    heading = "".join(f"<th>{name}</th>" for name in names)
    lines = []
    for row in rows:
        numbers = [
            format_value(value, digits) for value in (row.value, row.standard_error, row.lower, row.upper)
        ]
        numbers += [format_value(getattr(row, name), decimals) for _, name, decimals in known]
        cells = (row.rank, html.escape(row.policy), MARKS[row.level], *numbers)
        lines.append(f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    notes = [explain_table(estimates, verdicts), describe_run(estimates)]
    notes += [f"{level}: {text}" for level, text in list_notes(estimates, verdicts)]
    notes += describe_backtests(list_backtests(estimates), make_formatter(estimates.values))
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
    picture = Text("".join(characters), style=PICTURE)
    if true is not None:
        index = place(true)
        picture = Text.assemble(
            ("".join(characters[:index]), PICTURE),
            ("◆" if characters[index] != "●" else "◉", "green"),
            ("".join(characters[index + 1 :]), PICTURE),
        )
    return picture
