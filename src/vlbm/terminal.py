"""Text in terminals: control characters that came from a file are shown, never obeyed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.segment import Segment

KEPT = "\t\n"
# Unicode has pictures of the first 32 and of the last one.
PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in KEPT}
PICTURES |= {127: 0x2421} | dict.fromkeys(range(128, 160), 0xFFFD)


def show_controls(text: str) -> str:
    """The text with pictures in place of control characters, which terminals would act on."""
    return text.translate(PICTURES)


class SafeConsole(Console):
    """A console whose own colours are its only control characters."""

    def render(self, renderable: Any, options: Any = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(show_controls(segment.text), segment.style)
