"""Figures of a benchmark, like the paper's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vlbm.experiments.figures.bars import draw_environments, draw_overall
from vlbm.experiments.figures.estimates import draw_estimates
from vlbm.experiments.figures.latents import draw_latents
from vlbm.experiments.figures.style import FORMATS, STYLE, Figure, require_matplotlib
from vlbm.experiments.figures.weights import draw_weights
from vlbm.experiments.rows import Row
from vlbm.experiments.variants import family
from vlbm.progress import Progress, silent

__all__ = ["FORMATS", "Figure", "draw_figures"]


def draw_figures(
    rows: Sequence[Row], directory: Path, suite: str, progress: Progress = silent
) -> list[Figure]:
    """All that the rows of a suite allow; latents are read from beside them."""
    own = [row for row in rows if row.suite == suite]
    families = list(dict.fromkeys(family(row) for row in own if row.scores is not None))
    with require_matplotlib().rc_context(STYLE):
        found = [draw_overall(own, suite)] if families else []
        for name in families:
            found += draw_environments(own, name)
        weights = draw_weights(own, suite)
        found += [] if weights is None else [weights]
        for name in families:
            found += draw_estimates(own, name)
        found += draw_latents(own, directory, suite, progress)
        for figure in found:
            figure.fix_layout()
    return found
