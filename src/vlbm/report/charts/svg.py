"""SVG elements; every text and attribute is escaped."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup, escape

PAIRED = ("div", "span")  # elements that cannot be self-closing


def element(name: str, *content: Any, **attributes: Any) -> Markup:
    """<name attributes>content</name>; `class_` is class, underscores become hyphens, None is left out."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(round_coordinate(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    inside = "".join(escape(part) for part in content)
    return Markup(
        f"<{name}{written}>{inside}</{name}>" if inside or name in PAIRED else f"<{name}{written}/>"
    )


def round_coordinate(value: Any) -> Any:
    """One decimal is finer than a pixel."""
    if isinstance(value, float | np.floating):
        rounded = round(float(value), 1)
        return int(rounded) if rounded == int(rounded) else rounded
    return value


def text(x: float, y: float, content: str, **attributes: Any) -> Markup:
    return element("text", content, x=x, y=y, **attributes)


def join_points(xs: Iterable[float], ys: Iterable[float]) -> str:
    """'x,y x,y ...' as paths and polygons take it."""
    return " ".join(
        f"{round_coordinate(float(x))},{round_coordinate(float(y))}" for x, y in zip(xs, ys, strict=True)
    )


def finite_runs(values: Sequence[float] | np.ndarray) -> list[tuple[int, int]]:
    """Runs of finite numbers, as [begin, end)."""
    found, begin = [], None
    for index, value in enumerate(values):
        there = math.isfinite(value)
        if there and begin is None:
            begin = index
        if not there and begin is not None:
            found.append((begin, index))
            begin = None
    return [*found, (begin, len(values))] if begin is not None else found


def draw(width: float, height: float, label: str, *content: Any, class_: str = "plot") -> Markup:
    """An SVG that scales with its column, with a label for screen readers."""
    return element(
        "svg",
        *content,
        class_=class_,
        viewBox=f"0 0 {round_coordinate(width)} {round_coordinate(height)}",
        role="img",
        aria_label=label,
    )
