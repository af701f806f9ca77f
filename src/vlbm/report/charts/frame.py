"""Frame: the axes that charts are drawn in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from markupsafe import Markup

from vlbm.report.charts.scale import Scale
from vlbm.report.charts.svg import draw, element, text
from vlbm.report.numbers import format_short

WIDTH, HEIGHT = 340, 214
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 24, 38


@dataclass(frozen=True)
class Frame:
    """Two scales with axes; charts draw the marks."""

    x: Scale
    y: Scale
    x_label: str
    y_label: str
    height: float = HEIGHT
    x_text: Callable[[float], str] = format_short
    y_text: Callable[[float], str] = format_short

    @classmethod
    def of(
        cls, x: tuple[float, float], y: tuple[float, float], *, height: float = HEIGHT, **labels: Any
    ) -> Self:
        return cls(
            x=Scale(*x, LEFT, WIDTH - RIGHT),
            y=Scale(*y, height - BOTTOM, TOP),
            height=height,
            **labels,
        )

    def draw(self, title: str, *marks: Markup) -> Markup:
        """Grid lines under the marks, labels around them."""
        bottom = self.height - BOTTOM
        parts: list[Markup] = []
        for tick in self.y.ticks():
            at = self.y(tick)
            parts.append(element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=at, y2=at, class_="grid"))
            parts.append(text(LEFT - 6, at + 3.5, self.y_text(tick), class_="tick end"))
        for tick in self.x.ticks():
            parts.append(text(self.x(tick), bottom + 15, self.x_text(tick), class_="tick middle"))
        parts.append(element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=bottom, y2=bottom, class_="axis"))
        parts.append(text(2, 11, self.y_label, class_="label"))
        parts.append(text((LEFT + WIDTH - RIGHT) / 2, self.height - 4, self.x_label, class_="label middle"))
        return draw(WIDTH, self.height, title, *parts, *marks)
