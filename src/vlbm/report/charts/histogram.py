"""Distributions side by side."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from jaxtyping import Float

from vlbm.report.charts.frame import Frame
from vlbm.report.charts.scale import extent
from vlbm.report.charts.svg import element, join_points
from vlbm.report.numbers import format_percent, format_short
from vlbm.report.parts import Chart, Table

BINS = 20

Group = tuple[str, str, Float[np.ndarray, " values"]]  # label, style, values


def histogram_chart(
    title: str,
    groups: Sequence[Group],
    *,
    x_label: str,
    mark: tuple[str, float] | None = None,
    caption: str = "",
) -> Chart:
    """The share of every group's values in common bins, as outlines; `mark` draws a value by name."""
    edges = bin_edges([values for _, _, values in groups])
    shares = [np.histogram(values, edges)[0] / max(len(values), 1) for _, _, values in groups]
    top = max(float(share.max()) for share in shares) or 1.0
    frame = Frame.of(
        (edges[0], edges[-1]),
        (0.0, top * 1.08),
        x_label=x_label,
        y_label="share of episodes",
        y_text=format_percent,
    )
    marks = []
    for (_, style, _), share in zip(groups, shares, strict=True):
        xs = np.repeat(edges, 2)
        ys = np.concatenate([[0.0], np.repeat(share, 2), [0.0]])
        outline = join_points(map(frame.x, xs), map(frame.y, ys))
        marks.append(element("polygon", points=outline, class_=f"area {style}"))
    legend = [(style, label) for label, style, _ in groups]
    if mark is not None:
        at = frame.x(mark[1])
        marks.append(element("line", x1=at, x2=at, y1=frame.y(0.0), y2=frame.y(top), class_="marker"))
        legend.append(("marker", mark[0]))
    rows = tuple(
        (
            f"{format_short(_round_digits(low))} to {format_short(_round_digits(high))}",
            *(format_percent(share[index], 1) for share in shares),
        )
        for index, (low, high) in enumerate(pairwise(edges))
    )
    table = Table((x_label, *(label for label, _, _ in groups)), rows)
    return Chart(title, frame.draw(title, *marks), table, caption, tuple(legend))


def bin_edges(
    groups: Sequence[Float[np.ndarray, " values"]], bins: int = BINS
) -> Float[np.ndarray, " edges"]:
    """Equal bins over all values."""
    low, high = extent(np.concatenate([np.asarray(values, float) for values in groups]))
    return np.linspace(low, high, bins + 1)


def _round_digits(value: float) -> float:
    return float(f"{value:.3g}")
