"""Lines over time or steps, with bands where they have any."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup

from vlbm.report.charts.frame import Frame
from vlbm.report.charts.scale import extent
from vlbm.report.charts.svg import element, finite_runs, join_points
from vlbm.report.numbers import NOTHING, format_short
from vlbm.report.parts import Chart, Table

ROWS = 11  # of the table under a chart


@dataclass(frozen=True, eq=False)
class Line:
    """A series of numbers; NaN leaves a gap."""

    label: str
    style: str  # a class of the style sheet: c0 ... c7, logged
    x: Sequence[float] | np.ndarray
    y: Sequence[float] | np.ndarray
    low: Sequence[float] | np.ndarray | None = None
    high: Sequence[float] | np.ndarray | None = None
    dots: bool = False


def line_chart(
    title: str,
    lines: Sequence[Line],
    *,
    x_label: str,
    y_label: str,
    y_range: tuple[float, float] | None = None,
    x_range: tuple[float, float] | None = None,
    y_text: Callable[[float], str] = format_short,
    diagonal: bool = False,
    caption: str = "",
    option: str | None = None,
) -> Chart:
    """One chart of all lines; bands lie under them."""
    everything = [part for line in lines for part in (line.y, line.low, line.high) if part is not None]
    frame = Frame.of(
        x_range or extent(np.concatenate([np.asarray(line.x, float) for line in lines])),
        y_range or extent(np.concatenate([np.asarray(part, float) for part in everything]), margin=0.04),
        x_label=x_label,
        y_label=y_label,
        y_text=y_text,
    )
    marks: list[Markup] = []
    if diagonal:
        low, high = max(frame.x.low, frame.y.low), min(frame.x.high, frame.y.high)
        ends = {"x1": frame.x(low), "y1": frame.y(low), "x2": frame.x(high), "y2": frame.y(high)}
        marks.append(element("line", class_="guide", **ends))
    for line in lines:
        marks += _draw_band(line, frame)
    for line in lines:
        marks += _draw_line(line, frame)
    return Chart(
        title,
        frame.draw(title, *marks),
        lines_table(lines, x_label, y_text),
        caption,
        tuple((line.style, line.label) for line in lines),
        option,
    )


def lines_table(lines: Sequence[Line], x_label: str, y_text: Callable[[float], str]) -> Table:
    """A few rows of every line; with bands, as 'middle (low to high)'."""
    xs = np.unique(np.concatenate([np.asarray(line.x, float) for line in lines]))
    xs = xs[np.unique(np.linspace(0, len(xs) - 1, min(ROWS, len(xs))).round().astype(int))]

    def cell(line: Line, x: float) -> str:
        at = np.flatnonzero(np.asarray(line.x, float) == x)
        if not len(at) or not np.isfinite(line.y[at[0]]):
            return NOTHING
        middle = y_text(_round_digits(line.y[at[0]]))
        if line.low is None or line.high is None:
            return middle
        low, high = (y_text(_round_digits(part[at[0]])) for part in (line.low, line.high))
        return f"{middle} ({low} to {high})"

    return Table(
        (x_label, *(line.label for line in lines)),
        tuple((format_short(_round_digits(x)), *(cell(line, x) for line in lines)) for x in xs),
    )


def _round_digits(value: Any) -> float:
    return float(f"{float(value):.4g}")


def _draw_line(line: Line, frame: Frame) -> list[Markup]:
    marks = []
    for begin, end in finite_runs(line.y):
        xs = [frame.x(x) for x in line.x[begin:end]]
        ys = [frame.y(y) for y in line.y[begin:end]]
        if end - begin > 1:
            marks.append(element("polyline", points=join_points(xs, ys), class_=f"line {line.style}"))
        if line.dots or end - begin == 1:
            marks += [
                element("circle", cx=x, cy=y, r=3, class_=f"dot {line.style}")
                for x, y in zip(xs, ys, strict=True)
            ]
    return marks


def _draw_band(line: Line, frame: Frame) -> list[Markup]:
    if line.low is None or line.high is None:
        return []
    marks = []
    for begin, end in finite_runs(line.low):
        xs = [frame.x(x) for x in line.x[begin:end]]
        lower = [frame.y(y) for y in line.low[begin:end]]
        upper = [frame.y(y) for y in line.high[begin:end]]
        outline = join_points([*xs, *reversed(xs)], [*lower, *reversed(upper)])
        marks.append(element("polygon", points=outline, class_=f"band {line.style}"))
    return marks
