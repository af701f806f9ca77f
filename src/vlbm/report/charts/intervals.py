"""Values with intervals, drawn as bars that fit any column width."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from vlbm.report.charts.scale import Scale
from vlbm.report.charts.svg import element
from vlbm.report.numbers import NOTHING, Formatter
from vlbm.report.parts import Chart, Table

PAD = 2.5  # margin at both ends, in per cent


@dataclass(frozen=True)
class Mark:
    """A value with its interval."""

    label: str
    style: str
    lower: float
    value: float
    upper: float


def interval_bar(
    marks: Sequence[Mark],
    bounds: tuple[float, float],
    *,
    description: str,
    reference: float | None = None,
    truth: float | None = None,
    lane: float = 22,
) -> Markup:
    """One lane for every mark; a dashed line for a reference, a diamond outline for the truth.

    Positions are shares of the width, so that the bar stretches with its column while dots stay round.
    """
    scale = Scale(*bounds, PAD, 100 - PAD)
    height = lane * len(marks)
    parts = []
    if reference is not None and bounds[0] <= reference <= bounds[1]:
        at = _format_share(scale(reference))
        parts.append(element("line", x1=at, x2=at, y1=0, y2=height, class_="reference"))
    for index, mark in enumerate(marks):
        middle = lane * (index + 0.5)
        low, high = scale(mark.lower), scale(mark.upper)
        bar = {
            "x": _format_share(low),
            "width": _format_share(max(high - low, 0.3)),
            "y": middle - 3.5,
            "height": 7,
            "rx": 3.5,
        }
        parts.append(element("rect", class_=f"reach {mark.style}", **bar))
        parts.append(
            element(
                "circle", cx=_format_share(scale(mark.value)), cy=middle, r=4.5, class_=f"dot {mark.style}"
            )
        )
    if truth is not None:
        # A nested <svg> can be positioned by a share of the width, a path cannot.
        diamond = element("path", d="M0 -7L5 0L0 7L-5 0Z", class_="truth")
        parts.append(element("svg", diamond, x=_format_share(scale(truth)), y=height / 2, class_="spot"))
    return element(
        "svg",
        element("title", description),
        *parts,
        class_="bar",
        height=height,
        role="img",
        aria_label=description,
    )


def _format_share(value: float) -> str:
    return f"{value:.2f}%"


def _write_mark(mark: Mark, write: Formatter) -> str:
    return f"{write(mark.value)} ({write(mark.lower)} to {write(mark.upper)})"


def lanes_chart(
    title: str,
    rows: Sequence[tuple[str, Sequence[Mark], float | None]],
    bounds: tuple[float, float],
    *,
    write: Formatter,
    reference: float | None = None,
    caption: str = "",
) -> Chart:
    """A lane for every mark, all on one scale; a row is a name, its marks and perhaps a truth."""
    parts = []
    for name, marks, truth in rows:
        description = "; ".join(f"{mark.label} {_write_mark(mark, write)}" for mark in marks)
        bar = interval_bar(
            marks, bounds, description=f"{name}: {description}", reference=reference, truth=truth, lane=14
        )
        parts.append(
            element("div", element("span", name, class_="lane-name", title=name), bar, class_="lane")
        )
    low, high = element("span", write(bounds[0])), element("span", write(bounds[1]))
    parts.append(
        element("div", element("span", class_="lane-name"), element("div", low, high), class_="lane axis-row")
    )
    # A method may have no mark in some rows.
    styles = {mark.label: mark.style for _, marks, _ in rows for mark in marks}
    labels = list(styles)
    table = Table(
        ("policy", *labels, *(("truth",) if any(truth is not None for _, _, truth in rows) else ())),
        tuple(
            (
                name,
                *(
                    next((_write_mark(mark, write) for mark in marks if mark.label == label), NOTHING)
                    for label in labels
                ),
                *((write(truth),) if truth is not None else ()),
            )
            for name, marks, truth in rows
        ),
    )
    legend = tuple((style, label) for label, style in styles.items())
    return Chart(title, element("div", *parts, class_="lanes"), table, caption, legend, wide=True)
