"""Bars of every metric: over all tasks (the paper's Figure 3) and per environment (Figures 4 and 5)."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vlbm.experiments.figures.style import OURS, PAPER, SOFT, WIDTH, Figure, make_canvas
from vlbm.experiments.overview import average_cells
from vlbm.experiments.published import NAMES, SUITE
from vlbm.experiments.rows import Row
from vlbm.experiments.tables import METRICS, Cell, Metric, make_lines
from vlbm.experiments.variants import (
    environment_of,
    environment_title,
    family,
    family_title,
    name_method,
    order_tasks,
)

BAR = 0.145  # inches a method
LABEL = 26  # characters of a line of a method's name
ENVIRONMENTS = 5  # side by side
DIAMOND: dict[str, Any] = {
    "marker": "D",
    "color": PAPER,
    "markerfacecolor": "white",
    "markersize": 3.2,
    "markeredgewidth": 0.9,
}
AXES = {
    "rank_correlation": "rank correlation",
    "dope_regret": "regret@1\n(share of best return)",
    "regret": "regret@1\n(share of range)",
    "absolute_error": "MAE (return)",
}


SHORT = {"dope_regret": "regret@1 (of best)", "regret": "regret@1 (of range)"}  # where axes are narrow


@dataclass(frozen=True)
class Bar:
    """A method's mean over tasks, ours and as published."""

    label: str
    ours: Cell
    published: Cell
    fewer: bool  # whether a mean is over fewer tasks than there are


def draw_overall(rows: Sequence[Row], suite: str) -> Figure:
    """All metrics over all tasks of a suite."""
    own = [row for row in rows if row.suite == suite]
    tasks = order_tasks(row.problem for row in own)
    metrics = choose_metrics(suite)
    bars = [make_bars(own, tasks, metric) for metric in metrics]
    heights = measure_rows(bars[0])
    canvas, axes = make_canvas(WIDTH, 0.85 + heights, 1, len(metrics), sharey=True)
    for place, metric, found in zip(axes[0], metrics, bars, strict=True):
        draw_bars(place, found, metric)
        place.set_xlabel(AXES[metric.name])
    finish(canvas, axes, bars)
    return Figure(
        name=f"bars-all-tasks-{suite}",
        title=f"Means over all tasks of the {suite} suite",
        caption=f"Means over {len(tasks)} task{'' if len(tasks) == 1 else 's'}"
        + (", like the paper's Figure 3" if suite == SUITE else "")
        + describe_bars(bars),
        canvas=canvas,
    )


def draw_environments(rows: Sequence[Row], family_name: str) -> list[Figure]:
    """All metrics for every environment, over its data sets; none where there is but one of them."""
    own = [row for row in rows if family(row) == family_name]
    tasks = order_tasks(row.problem for row in own)
    environments = list(dict.fromkeys(environment_of(task) for task in tasks))
    if len(environments) == 1:
        return []
    starts = range(0, len(environments), ENVIRONMENTS)
    found = []
    for number, start in enumerate(starts, start=1):
        part = environments[start : start + ENVIRONMENTS]
        suffix = "" if len(starts) == 1 else f"-{number}"
        found.append(_draw_part(own, tasks, part, family_name, suffix))
    return found


def _draw_part(
    rows: Sequence[Row], tasks: Sequence[str], environments: Sequence[str], family_name: str, suffix: str
) -> Figure:
    metrics = choose_metrics(rows[0].suite)
    mine = {name: [task for task in tasks if environment_of(task) == name] for name in environments}
    bars = [[make_bars(rows, mine[name], metric) for name in environments] for metric in metrics]
    height = len(metrics) * (0.45 + measure_rows(bars[0][0])) + 0.45
    width = WIDTH if len(environments) > 2 else 1.6 + 1.2 * len(environments)
    canvas, axes = make_canvas(width, height, len(metrics), len(environments), sharey=True)
    for line, metric, found in zip(axes, metrics, bars, strict=True):
        for place, name, column in zip(line, environments, found, strict=True):
            draw_bars(place, column, metric)
            place.set_xlabel(SHORT.get(metric.name, AXES[metric.name]))
            if metric is metrics[0]:
                place.set_title(environment_title(name), fontweight="bold")
        if metric.name != "absolute_error":  # returns of different environments have no scale in common
            lows, highs = zip(*(place.get_xlim() for place in line), strict=True)
            for place in line:
                place.set_xlim(min(lows), max(highs))
    every = [column for found in bars for column in found]
    finish(canvas, axes, every)
    number = {"gym-mujoco": "4", "adroit": "5"}.get(family_name)
    return Figure(
        name=f"bars-environments-{family_name}{suffix}",
        title=f"Means per environment, {family_title(family_name)}",
        caption="Means over the data sets of every environment"
        + (f", like the paper's Figure {number}" if number else "")
        + describe_bars(every),
        canvas=canvas,
    )


def choose_metrics(suite: str) -> list[Metric]:
    """Of the two regrets the one that the paper prints, or that which means something everywhere."""
    regret = "dope_regret" if suite == SUITE else "regret"
    return [METRICS[name] for name in ("rank_correlation", regret, "absolute_error")]


def make_bars(rows: Sequence[Row], tasks: Sequence[str], metric: Metric) -> list[Bar]:
    """One for every variant beside its method's published mean, and one for what only the paper has."""
    lines, _ = make_lines(rows, tasks, metric)
    published = {line.method: average_cells(line.cells, []) for line in lines if line.published}
    own = {line.method for line in lines if not line.published}
    bars = []
    for line in lines:
        if line.published and line.method in own:
            continue
        label = NAMES.get(line.method, name_method(line.method)) if line.published else line.label
        ours = Cell() if line.published else average_cells(line.cells, [])
        theirs = published.get(line.method, Cell())
        bars.append(Bar(label, ours, theirs, fewer=bool(ours.notes or theirs.notes)))
    return bars


def measure_rows(bars: Sequence[Bar]) -> float:
    """Inches for all bars; long names take several lines."""
    most = max(wrap_label(bar.label).count("\n") for bar in bars)
    return BAR * (1 + 0.7 * most) * max(len(bars), 3)


def wrap_label(label: str) -> str:
    return "\n".join(textwrap.wrap(label, LABEL))


def draw_bars(place: Any, bars: Sequence[Bar], metric: Metric) -> None:
    """Horizontal bars, the first method on top; whiskers of both kinds beside each other."""
    for row, bar in enumerate(bars):
        if bar.ours.mean is not None:
            place.barh(row, bar.ours.mean, height=0.7, color=OURS, alpha=0.85, linewidth=0)
            if bar.ours.deviation is not None:
                upper = row if bar.published.mean is None else row - 0.16
                place.errorbar(bar.ours.mean, upper, xerr=bar.ours.deviation, color="#1B2530", linewidth=0.8)
        if bar.published.mean is not None:
            lower = row if bar.ours.mean is None else row + 0.14
            place.errorbar(bar.published.mean, lower, xerr=bar.published.deviation, elinewidth=0.8, **DIAMOND)
    place.axvline(0, color=SOFT, linewidth=0.6)
    place.set_ylim(len(bars) - 0.4, -0.6)
    place.grid(axis="y", visible=False)
    place.tick_params(axis="y", length=0)
    place.spines["left"].set_visible(False)
    if metric.higher:
        low, high = place.get_xlim()
        place.set_xlim(min(low, 0), max(high, 1.0))
    place.locator_params(axis="x", nbins=4)


def finish(canvas: Any, axes: Any, bars: Sequence[Sequence[Bar]]) -> None:
    """The methods' names, which all axes share, and below them what bars, diamonds and stars are."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    starred = [any(found[row].fewer for found in bars) for row in range(len(bars[0]))]
    labels = [wrap_label(bar.label) + "*" * star for bar, star in zip(bars[0], starred, strict=True)]
    for line in axes:
        line[0].set_yticks(range(len(labels)), labels)
    handles: list[Any] = [Patch(color=OURS, alpha=0.85, label="ours")]
    if any(bar.published.mean is not None for found in bars for bar in found):
        handles.append(Line2D([], [], linewidth=0.8, label="published", **DIAMOND))
    if any(starred):
        handles.append(Line2D([], [], linewidth=0, label="* over fewer tasks"))
    if len(handles) > 1:
        canvas.legend(handles=handles, loc="outside lower center", ncols=len(handles))


def describe_bars(bars: Sequence[Sequence[Bar]]) -> str:
    text = "; whiskers: standard deviation over seeds of that mean."
    if any(bar.published.mean is not None for found in bars for bar in found):
        text += " Diamonds: the paper's published numbers of the same tasks."
    if any(bar.fewer for found in bars for bar in found):
        text += " Methods with a star have results of fewer tasks."
    return text
