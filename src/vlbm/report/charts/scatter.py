"""Points on a plane: single ones with error bars, or clouds of many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from markupsafe import Markup

from vlbm.report.charts.frame import WIDTH, Frame
from vlbm.report.charts.scale import Scale, extent
from vlbm.report.charts.svg import draw, element, round_coordinate
from vlbm.report.numbers import Formatter
from vlbm.report.parts import Chart, Table

HEIGHT = 290


@dataclass(frozen=True)
class ScatterPoint:
    """A point with an interval up and down."""

    label: str
    style: str
    x: float
    y: float
    low: float
    high: float


def scatter_chart(
    title: str,
    spots: Sequence[ScatterPoint],
    *,
    x_label: str,
    y_label: str,
    write: Formatter,
    caption: str = "",
    legend: tuple[tuple[str, str], ...] = (),
) -> Chart:
    """Both axes alike, with the line on which they would be equal."""
    both = extent([value for spot in spots for value in (spot.x, spot.y, spot.low, spot.high)], margin=0.05)
    frame = Frame.of(both, both, x_label=x_label, y_label=y_label, height=HEIGHT)
    marks: list[Markup] = [
        element("line", x1=frame.x.start, y1=frame.y.start, x2=frame.x.end, y2=frame.y.end, class_="guide")
    ]
    for spot in spots:
        x = frame.x(spot.x)
        bar = {"x1": x, "x2": x, "y1": frame.y(spot.low), "y2": frame.y(spot.high)}
        tip = element("title", f"{spot.label}: {y_label} {write(spot.y)}, {x_label} {write(spot.x)}")
        marks.append(element("line", class_=f"whisker {spot.style}", **bar))
        marks.append(element("circle", tip, cx=x, cy=frame.y(spot.y), r=4.5, class_=f"dot {spot.style}"))
    rows = tuple(
        (
            spot.label,
            write(spot.x),
            f"{write(spot.y)} ({write(spot.low)} to {write(spot.high)})",
            write(spot.y - spot.x),
        )
        for spot in spots
    )
    table = Table(("policy", x_label, y_label, "difference"), rows)
    return Chart(title, frame.draw(title, *marks), table, caption, legend)


def draw_cloud(
    title: str, groups: Sequence[tuple[str, Float[np.ndarray, "points 2"]]], bounds: Float[np.ndarray, "2 2"]
) -> Markup:
    """Many points in a few styles; `bounds` holds the lowest and highest coordinates of all clouds."""
    (left, low), (right, high) = bounds
    x, y = Scale(float(left), float(right), 8, WIDTH - 8), Scale(float(low), float(high), HEIGHT - 8, 8)
    # Zero-length strokes with round caps are dots, so that one path draws all of them.
    paths = [
        element(
            "path",
            d="".join(
                f"M{round_coordinate(x(float(across)))} {round_coordinate(y(float(up)))}h0"
                for across, up in points
            ),
            class_=f"cloud {style}",
        )
        for style, points in groups
        if len(points)
    ]
    return draw(WIDTH, HEIGHT, title, *paths)
