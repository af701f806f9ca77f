"""Parts of a whole: one stacked bar for every whole."""

from __future__ import annotations

from collections.abc import Sequence

from vlbm.report.charts.frame import WIDTH
from vlbm.report.charts.svg import draw, element, text
from vlbm.report.numbers import NOTHING, format_percent
from vlbm.report.parts import Chart, Table

ROW = 30
LEFT = 60


def shares_chart(
    title: str,
    wholes: Sequence[tuple[str, Sequence[float]]],
    *,
    part: str,
    caption: str = "",
) -> Chart:
    """Every whole's parts from left to right, numbered where there is room for a number."""
    room = WIDTH - LEFT - 4
    marks = []
    for row, (label, shares) in enumerate(wholes):
        top = 6 + ROW * row
        marks.append(text(LEFT - 8, top + 16, label, class_="tick end"))
        at = float(LEFT)
        for index, share in enumerate(shares):
            width = room * float(share)
            tip = element("title", f"{part} {index + 1}: {format_percent(float(share), 1)}")
            box = {"x": at, "y": top, "width": max(width - 1.5, 0.5), "height": ROW - 8, "rx": 2}
            marks.append(element("rect", tip, class_=f"share {'even' if index % 2 else 'odd'}", **box))
            if width > 22:
                marks.append(text(at + width / 2, top + 15, str(index + 1), class_="tick middle onfill"))
            at += width
    most = max(len(shares) for _, shares in wholes)
    rows = tuple(
        (label, *(format_percent(float(share), 1) for share in shares), *(NOTHING,) * (most - len(shares)))
        for label, shares in wholes
    )
    table = Table(("", *(f"{part} {index + 1}" for index in range(most))), rows)
    return Chart(title, draw(WIDTH, ROW * len(wholes) + 6, title, *marks), table, caption)
