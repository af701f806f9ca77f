"""Estimate against truth for every task: the paper's Figures 7, 10 and 11."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vlbm.experiments.figures.style import COLOURS, MARKERS, SOFT, WIDTH, Figure, make_canvas
from vlbm.experiments.rows import Row
from vlbm.experiments.variants import (
    Variant,
    dataset_of,
    environment_of,
    family,
    family_title,
    list_variants,
    order_tasks,
    task_title,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

METHODS = len(COLOURS)  # in one figure
COLUMNS = 5
LINES = 5  # of panels in one figure
SELECTED = "medium-expert"  # what the paper's Figure 7 talks about
# The paper shows model-based methods; the first figure has those that it compares.
FIRST = ("vlbm", "ar", "vlm", "fqe")
TICKS = [1, 2, 2.5, 3, 4, 5, 10]
CAPTION = (
    "A marker for every policy: the mean over seeds, with a line from the lowest to the highest{}. Dashed: "
    "where estimates are true. Hollow markers at the edge lie beyond it."
)


def draw_estimates(rows: Sequence[Row], family_name: str) -> list[Figure]:
    """A panel for every task, four methods to a figure; and one of a task for each environment."""
    own = [row for row in rows if family(row) == family_name and row.scores is not None]
    variants = list_variants(own)
    variants.sort(key=lambda one: FIRST.index(one.method) if one.method in FIRST else len(FIRST))
    groups = [variants[start : start + METHODS] for start in range(0, len(variants), METHODS)]
    tasks = order_tasks(row.problem for row in own)
    selected = [task for task in tasks if dataset_of(task) == SELECTED]
    lines = split_lines(tasks)
    if len(tasks) < 0.75 * len(lines) * max(map(len, lines), default=0):
        lines = split_lines(tasks, by_environment=False)  # too many gaps
    pages = [lines[start : start + LINES] for start in range(0, len(lines), LINES)]
    title = f"Estimated and true returns, {family_title(family_name)}"
    like = family_name == "gym-mujoco"
    found = []
    if 1 < len(selected) < len(tasks):
        figure = draw_page(own, groups[0], split_lines(selected, by_environment=False))
        found.append(
            Figure(
                name=f"estimates-selection-{family_name}",
                title=f"{title}: {SELECTED} data",
                caption=CAPTION.format(", like the paper's Figure 7" if like else ""),
                canvas=figure,
            )
        )
    for number, group in enumerate(groups, start=1):
        for part, page in enumerate(pages, start=1):
            suffix = "" if len(pages) == 1 else f"-part-{part}"
            found.append(
                Figure(
                    name=f"estimates-{family_name}-{number}{suffix}",
                    title=title,
                    caption=CAPTION.format(", like the paper's Figures 10 and 11" if like else ""),
                    canvas=draw_page(own, group, page),
                )
            )
    return found


def split_lines(tasks: Sequence[str], *, by_environment: bool = True) -> list[list[str]]:
    """Lines of panels; every environment begins a new one, or all tasks follow each other."""
    lines = []
    for environment in dict.fromkeys(environment_of(task) if by_environment else "" for task in tasks):
        own = [task for task in tasks if environment in ("", environment_of(task))]
        lines += [own[start : start + COLUMNS] for start in range(0, len(own), COLUMNS)]
    return lines


def draw_page(rows: Sequence[Row], variants: Sequence[Variant], lines: Sequence[Sequence[str]]) -> Canvas:
    """Panels of these tasks for up to four methods."""
    columns = max(map(len, lines))
    width = WIDTH if columns > 2 else 1.1 + 1.8 * columns
    height = max(0.75 + len(lines) * min(width / columns, 1.9), 2.2)
    canvas, axes = make_canvas(width, height, len(lines), columns)
    for line, tasks in zip(axes, lines, strict=True):
        for place in line[len(tasks) :]:
            place.set_axis_off()
        for place, task in zip(line, tasks, strict=False):
            draw_panel(place, [row for row in rows if row.problem == task], variants)
            place.set_title(task_title(task), fontsize=6.8)  # as wide as a panel of five
    discounts = {row.estimand.discount for row in rows}
    of = f" (discount {discounts.pop():g})" if len(discounts) == 1 else ""
    canvas.supxlabel(f"true return{of}")
    canvas.supylabel(f"estimated return{of}")
    add_legend(canvas, variants)
    return canvas


def draw_panel(place: Any, rows: Sequence[Row], variants: Sequence[Variant]) -> None:
    """One task: a marker for every method and policy."""
    truths = [value for row in rows for value in (row.truth or {}).values()]
    low, high = min(truths), max(truths)
    extent = (high - low) or abs(high) or 1.0
    # An estimate that diverged must not squeeze all others into a line.
    floor, ceiling = low - 0.75 * extent, high + 0.75 * extent
    shown = []
    for variant, colour, marker in zip(variants, COLOURS, MARKERS, strict=False):
        own = [row for row in rows if Variant.of(row) == variant]
        if not own:
            continue
        names = list(own[0].policies)
        true = np.array([(own[0].truth or {})[name] for name in names])
        seeds = np.array(
            [[row.policies[name].value for name in names] for row in own if [*row.policies] == names]
        )
        means = seeds.mean(axis=0)
        inside = (means >= floor) & (means <= ceiling)
        ends = np.clip([seeds.min(axis=0), seeds.max(axis=0)], floor, ceiling)
        place.vlines(true[inside], ends[0][inside], ends[1][inside], color=colour, linewidth=0.6, alpha=0.5)
        style = {"marker": marker, "edgecolors": colour, "linewidths": 0.6, "clip_on": False, "zorder": 3}
        place.scatter(true[inside], means[inside], s=8, facecolors=colour, alpha=0.85, **style)
        place.scatter(true[~inside], np.clip(means[~inside], floor, ceiling), s=8, facecolors="none", **style)
        shown += [*ends.ravel(), *np.clip(means, floor, ceiling)]
    ends = [min([low, *shown]), max([high, *shown])]
    pad = 0.05 * (ends[1] - ends[0] or 1.0)
    place.plot([low, high], [low, high], color=SOFT, linewidth=0.7, linestyle=(0, (4, 2)), zorder=1)
    place.set_xlim(low - 0.06 * extent, high + 0.06 * extent)
    place.set_ylim(ends[0] - pad, ends[1] + pad)
    # Labels below each other have room, labels beside each other hardly.
    place.locator_params(axis="x", nbins=2, steps=TICKS)
    place.locator_params(axis="y", nbins=3, steps=TICKS)


def add_legend(canvas: Any, variants: Sequence[Variant]) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], marker=marker, color=colour, markersize=3.5, linewidth=0, label=variant.label)
        for variant, colour, marker in zip(variants, COLOURS, MARKERS, strict=False)
    ]
    entry = 0.35 + 0.05 * max(len(variant.label) for variant in variants)  # inches, about
    columns = min(max(int(canvas.get_figwidth() / entry), 1), len(handles))
    canvas.legend(handles=handles, loc="outside upper center", ncols=columns)
