"""The tables of docs/appendix/study.md: how right world models are, what settings do, how to imagine."""

from __future__ import annotations

from typing import Any

import numpy as np

from accuracy import TASKS, group_by_method
from tabulating import grouped, markdown
from vlbm.results.metrics import normalised_absolute_error, rank_correlation, regret


def scores(rows: list[dict[str, Any]]) -> list[np.ndarray]:
    """Rank correlation, regret and error as a share of the range, of every row."""
    return [
        np.array([metric(np.array(row["values"]), np.array(row["truth"])) for row in rows])
        for metric in (rank_correlation, regret, normalised_absolute_error)
    ]


def accuracy_table(rows: list[dict[str, Any]], labels: tuple[str, ...]) -> str:
    """Every task, label and method, and the mean of the world models: means and deviations over seeds."""
    lines = []
    for task in TASKS:
        for label in labels:
            chosen = [row for row in rows if (row["task"], row["label"]) == (task, label)]
            for method, own in group_by_method(chosen).items():
                ranks, regrets, errors = scores(own)
                seconds = [sum(row["seconds"].values()) for row in own if row["seconds"]]
                lines.append(
                    [
                        *((task, label) if len(labels) > 1 else (task,)),
                        *(method, " ".join(f"{rank:.2f}" for rank in ranks)),
                        *(with_spread(part, 2) for part in (ranks, regrets)),
                        with_spread(100 * errors, 0),
                        f"{np.mean(seconds):.0f}" if seconds else "",
                    ]
                )
    first = ["task", "code"] if len(labels) > 1 else ["task"]
    columns = ["method", "rank by seed", "rank", "regret@1", "error, % of range", "seconds"]
    return markdown([*first, *columns], lines)


def with_spread(values: np.ndarray, digits: int) -> str:
    """The mean and, where there are several seeds, their deviation."""
    deviation = f" ± {values.std():.{digits}f}" if len(values) > 1 else ""
    return f"{values.mean():.{digits}f}{deviation}"


def changes_table(rows: list[dict[str, Any]]) -> str:
    """What a setting does to scores that need no truth, and to those that do."""
    lines = []
    for row in rows:
        ranks, regrets, errors = scores([row])
        validation = " ".join(f"{value:.3f}" for value in row["validation"])
        loss = " ".join(f"{value:.0f}" for value in row.get("loss", []))
        scored = f"{ranks[0]:.2f}", f"{regrets[0]:.2f}", f"{100 * errors[0]:.0f}"
        lines.append([row["label"], row["task"], validation, loss, *scored])
    heading = ["change", "task", "10-step error", "loss", "rank", "regret@1", "error, % of range"]
    return markdown(heading, lines)


def imagination_table(rows: list[dict[str, Any]]) -> str:
    """The error of every way of imagining in every environment, the smallest mean first."""
    environments = list(dict.fromkeys(row["environment"] for row in rows))
    errors = {
        way: np.array([row["error"] for row in group])
        for way, group in grouped(rows, "sampling", "reencode_every").items()
        if len(group) == len(environments)
    }
    if not errors:
        return ""
    ranked = sorted(errors, key=lambda way: errors[way].mean())
    best = errors[ranked[0]]

    def behind(error: np.ndarray) -> str:
        difference = error - best
        deviation = difference.std(ddof=1) / np.sqrt(len(difference)) if len(difference) > 1 else 0.0
        return f"{difference.mean():.3f} ± {deviation:.3f}"

    return markdown(
        ["sampling", "re-encoding", *environments, "mean", "behind the first"],
        [
            [
                sampling,
                "never" if every is None else f"every {every}",
                *(f"{error:.3f}" for error in errors[sampling, every]),
                f"{errors[sampling, every].mean():.3f}",
                behind(errors[sampling, every]),
            ]
            for sampling, every in ranked
        ],
    )
