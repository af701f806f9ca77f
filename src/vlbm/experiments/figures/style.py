"""The look that all figures share, and figures as files that are the same every time."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlbm.errors import require
from vlbm.storage import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

FORMATS = ("png", "svg", "pdf")
WIDTH = 5.5  # inches: the text of a conference paper
DOTS = 200  # an inch
# After Okabe and Ito: told apart by the colour-blind too; markers differ as well.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
MARKERS = ("o", "^", "s", "D")
OURS, PAPER, SOFT = COLOURS[0], COLOURS[1], "#6B7580"
STYLE: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib, so that files do not depend on the machine
    "font.size": 7,
    "axes.titlesize": 7.5,
    "axes.labelsize": 7,
    "xtick.labelsize": 6.5,
    "ytick.labelsize": 6.5,
    "legend.fontsize": 7,
    "figure.labelsize": 7,
    "axes.linewidth": 0.6,
    "axes.edgecolor": SOFT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#E3E7EC",
    "grid.linewidth": 0.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "xtick.color": "#333B44",
    "ytick.color": "#333B44",
    "legend.frameon": False,
    "lines.linewidth": 1.0,
    "svg.hashsalt": "vlbm",
    "pdf.fonttype": 42,
}
# Dates and versions would make every file a new one.
METADATA: dict[str, dict[str, None]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Producer": None, "Creator": None},
}


@dataclass(frozen=True, eq=False)
class Figure:
    """A drawing with the words that go with it."""

    name: str  # of its files
    title: str
    caption: str
    canvas: Canvas

    def fix_layout(self) -> None:
        """Lay it out once: each time that it is drawn the layout would move a little."""
        self.canvas.draw_without_rendering()
        self.canvas.set_layout_engine("none")

    def save(self, folder: Path, formats: Sequence[str]) -> list[Path]:
        """One file for every format."""
        paths = []
        for suffix in formats:
            paths.append(folder / f"{self.name}.{suffix}")
            write_atomically(paths[-1], partial(self._write, suffix=suffix))
        return paths

    def as_png(self) -> bytes:
        buffer = io.BytesIO()
        self._write(buffer, "png")
        return buffer.getvalue()

    def _write(self, target: Path | io.BytesIO, suffix: str) -> None:
        matplotlib = require_matplotlib()
        with matplotlib.rc_context(STYLE):
            self.canvas.savefig(target, format=suffix, dpi=DOTS, metadata=METADATA[suffix])


def require_matplotlib() -> Any:
    return require("matplotlib", extra="report", purpose="drawing figures")


def make_canvas(
    width: float, height: float, rows: int = 1, columns: int = 1, **arguments: Any
) -> tuple[Canvas, Any]:
    """A figure of that many inches, and its axes in rows and columns; call it inside `rc_context(STYLE)`."""
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=(width, height), layout="constrained")
    return canvas, canvas.subplots(rows, columns, squeeze=False, **arguments)
