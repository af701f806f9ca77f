"""Latent spaces by t-SNE, coloured by policy: the paper's Figures 8, 12 and 13."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vlbm.errors import require
from vlbm.experiments.evidence.latents import map_latents
from vlbm.experiments.figures.style import WIDTH, Figure, make_canvas
from vlbm.experiments.rows import Latents, Row, read_latents
from vlbm.experiments.variants import Variant, list_variants, order_tasks, task_title
from vlbm.progress import Progress, Report, silent
from vlbm.results.diagnostics.support import subsample

POINTS = 660  # of a panel
COLUMNS, PANELS = 4, 8
FIGURES = {"vlbm": "8", "vlm": "12", "vlm-rsa-mse": "13"}


def draw_latents(
    rows: Sequence[Row], directory: Path, suite: str, progress: Progress = silent
) -> list[Figure]:
    """A figure for every method with stored latents, a panel for every task (of its first seed)."""
    found = []
    for variant in list_variants([row for row in rows if row.suite == suite]):
        panels: dict[str, tuple[Row, Latents]] = {}
        for row in sorted(rows, key=lambda row: row.seed):
            if row.suite == suite and Variant.of(row) == variant and row.problem not in panels:
                latents = read_latents(directory, row)
                if latents is not None:
                    panels[row.problem] = (row, latents)
        tasks = order_tasks(panels)
        parts = [tasks[start : start + PANELS] for start in range(0, len(tasks), PANELS)]
        for number, part in enumerate(parts, start=1):
            suffix = f"-{number}" if len(parts) > 1 else ""
            name = f"latents-{suite}-{variant.method}-{variant.preset}-{variant.digest}"
            name += "-regenerated" if variant.regenerated else ""
            with progress.task(total=len(part), title=f"t-SNE of {variant.label}") as report:
                shown = {task: panels[task] for task in part}
                found.append(_draw(variant, shown, f"{name}{suffix}", suite, report))
    return found


def _draw(
    variant: Variant, panels: dict[str, tuple[Row, Latents]], name: str, suite: str, report: Report
) -> Figure:
    columns = min(len(panels), COLUMNS)
    lines = math.ceil(len(panels) / columns)
    side = WIDTH / COLUMNS
    width = max(columns * side, 2.4)
    canvas, axes = make_canvas(width, 0.42 + lines * (side + 0.28), lines, columns)
    for place in axes.ravel()[len(panels) :]:
        place.set_axis_off()
    policies, techniques = 1, set()
    for done, (place, (task, (row, latents))) in enumerate(zip(axes.ravel(), panels.items(), strict=False)):
        techniques.add(draw_panel(place, row, latents))
        place.set_title(f"{task_title(task)}\nsilhouette {measure_silhouette(latents):.2f}")
        policies = max(policies, len(row.policies))
        report(done + 1, None)
    add_scale(canvas, axes, policies)
    number = FIGURES.get(variant.method)
    return Figure(
        name=name,
        title=f"Latent space of {variant.label}",
        caption=f"{' and '.join(sorted(techniques))} of the latents of steps that the target policies make"
        + (f", like the paper's Figure {number}" if number and suite == "dope" else "")
        + "; colour: the policy, from the worst to the best true return. Silhouette: how well policies are "
        "told apart in the latent space itself, from -1 to 1 (0: not at all).",
        canvas=canvas,
    )


def draw_panel(place: Any, row: Row, latents: Latents) -> str:
    """The latents of one task on a plane, coloured by their policy's place among all; by which technique."""
    placed = map_latents(latents.latent, latents.owner, latents.returns, points=POINTS)
    ranks = rank_policies(row, latents)
    # Rasters in vector files: a thousand markers a panel would make them slow.
    place.scatter(
        *placed.points.T, c=ranks[placed.owner], cmap="viridis", vmin=0, vmax=max(len(ranks) - 1, 1), s=2.5,
        linewidths=0, alpha=0.85, rasterized=True,
    )  # fmt: skip
    place.set(xticks=[], yticks=[])
    place.set_box_aspect(1)
    place.grid(visible=False)
    for side in ("top", "right"):
        place.spines[side].set_visible(True)
    return placed.technique


def rank_policies(row: Row, latents: Latents) -> np.ndarray:
    """The place of every policy from worst to best: by its true return, or where unknown by its episodes'."""
    if row.truth is not None:
        worth = [row.truth[name] for name in row.policies]
    else:
        owners = range(len(row.policies))
        worth = [latents.returns[latents.owner == owner].mean() if (latents.owner == owner).any() else 0.0
                 for owner in owners]  # fmt: skip
    return np.argsort(np.argsort(worth))


def measure_silhouette(latents: Latents) -> float:
    """The silhouette of policies as clusters, of at most 2,000 steps; NaN for a single policy."""
    score = require("sklearn.metrics", extra="report", purpose="drawing figures").silhouette_score
    chosen = subsample(np.arange(len(latents.latent)), 2000, np.random.default_rng(0))
    owner = latents.owner[chosen]
    if not 1 < len(np.unique(owner)) < len(owner):
        return math.nan
    return float(score(latents.latent[chosen].astype(np.float64), owner))


def add_scale(canvas: Any, axes: Any, policies: int) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import BoundaryNorm

    bounds = np.arange(policies + 1) - 0.5
    colours = ScalarMappable(BoundaryNorm(bounds, 256), "viridis")
    narrow = axes.shape[1] == 1  # no room for the label between those of the ends
    shrink = 0.95 if narrow else 0.6
    bar = canvas.colorbar(colours, ax=axes, location="bottom", shrink=shrink, aspect=40, pad=0.02)
    bar.set_ticks([0, policies - 1], labels=["worst", "best"])
    bar.ax.tick_params(length=0)
    bar.ax.minorticks_off()
    bar.outline.set_visible(False)
    bar.set_label("policy, by true return", labelpad=2 if narrow else -6)
