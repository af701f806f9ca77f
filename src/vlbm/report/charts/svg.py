"""SVG elements; every text and attribute is escaped."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup, escape

PAIRED = ("div", "span")  # HTML has no short form of these


def element(name: str, *content: Any, **attributes: Any) -> Markup:
    """<name attributes>content</name>; `class_` is class, underscores become hyphens, None is left out."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(place(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    inside = "".join(escape(part) for part in content)
    return Markup(
        f"<{name}{written}>{inside}</{name}>" if inside or name in PAIRED else f"<{name}{written}/>"
    )


def place(value: Any) -> Any:
    """Coordinates with one decimal are finer than any screen."""
    if isinstance(value, float | np.floating):
        rounded = round(float(value), 1)
        return int(rounded) if rounded == int(rounded) else rounded
    return value


def text(x: float, y: float, content: str, **attributes: Any) -> Markup:
    return element("text", content, x=x, y=y, **attributes)


def points(xs: Iterable[float], ys: Iterable[float]) -> str:
    """'x,y x,y ...' as paths and polygons take it."""
    return " ".join(f"{place(float(x))},{place(float(y))}" for x, y in zip(xs, ys, strict=True))


def stretches(values: Sequence[float] | np.ndarray) -> list[tuple[int, int]]:
    """Where numbers stand without a gap, as [begin, end)."""
    found, begin = [], None
    for index, value in enumerate(values):
        there = math.isfinite(value)
        if there and begin is None:
            begin = index
        if not there and begin is not None:
            found.append((begin, index))
            begin = None
    return [*found, (begin, len(values))] if begin is not None else found


def drawing(width: float, height: float, label: str, *content: Any, class_: str = "plot") -> Markup:
    """A picture that scales with its column and says what it shows."""
    return element(
        "svg",
        *content,
        class_=class_,
        viewBox=f"0 0 {place(width)} {place(height)}",
        role="img",
        aria_label=label,
    )
