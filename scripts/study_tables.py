"""The tables of docs/study.md: how the default was chosen, and the paper's ablation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tabulating import grouped, markdown, scores, seconds, spread
from vlbm.metrics import absolute_error, rank_correlation, regret

NAMES = {
    "vlm": "VLM",
    "vlm-rsa": "VLM+RSA",
    "vlm-rsa-mse": "VLM+RSA(MSE)",
    "vlm-rsa-ensemble": "VLM+RSA ensemble",
    "vlbm": "VLBM",
    "average": "VLBM, averaged over its seeds",
}


def averaged(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What `models=N` gives: the mean of the estimates of N models from different seeds."""
    estimated = np.mean([row["values"] for row in rows], axis=0)
    true = np.array(rows[0]["truth"])
    return {
        **rows[0],
        "method": "average",
        "models": len(rows),
        "rank": rank_correlation(estimated, true),
        "regret": regret(estimated, true),
        "mae": absolute_error(estimated, true),
        "validation": float(np.mean([row["validation"] for row in rows])),
        "seconds": {"fit": sum(row["seconds"]["fit"] for row in rows)},
    }


def default_table(rows: list[dict[str, Any]]) -> str:
    heading = ["task", "seeds", "rank correlation", "regret@1 (of range)", "MAE", "true returns", "fit"]
    return markdown(
        heading,
        [
            [
                task,
                len(group),
                *scores(group),
                f"{min(group[0]['truth']):.0f} to {max(group[0]['truth']):.0f}",
                seconds(group),
            ]
            for (task,), group in grouped(rows, "task").items()
        ],
    )


def ablation_table(rows: list[dict[str, Any]]) -> str:
    order = list(NAMES)
    groups = sorted(
        grouped(rows, "task", "method").items(), key=lambda item: (item[0][0], order.index(item[0][1]))
    )
    heading = ["task", "method", "seeds", "rank correlation", "regret@1", "MAE", "validation", "fit"]
    return markdown(
        heading,
        [
            [task, NAMES[method], len(group), *scores(group), spread(group, "validation", 3), seconds(group)]
            for (task, method), group in groups
        ],
    )


def held_back_table(rows: list[dict[str, Any]]) -> str:
    return markdown(
        ["task", "imagination", "seeds", "rank correlation", "regret@1", "MAE"],
        [
            [task, imagine or "default", len(group), *scores(group)]
            for (task, imagine), group in grouped(rows, "task", "imagine").items()
        ],
    )


def settings_table(rows: list[dict[str, Any]]) -> str:
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    by_label = {
        label: {row["task"]: f"{row['validation']:.4f}" for row in group}
        for (label,), group in grouped(rows, "label").items()
    }
    return markdown(
        ["change", *(f"{task}: validation" for task in tasks)],
        [[label, *(found.get(task, "") for task in tasks)] for label, found in by_label.items()],
    )


def behaviour_table(rows: list[dict[str, Any]]) -> str:
    def numbers(values: Sequence[float]) -> str:
        return ", ".join(f"{value:.0f}" for value in values)

    return markdown(
        ["task", "sampling", "re-encoding", "imagined", "logged", "error"],
        [
            [
                row["task"],
                row["sampling"],
                f"every {row['reencode_every']}",
                numbers(row["imagined"]),
                numbers(row["logged"]),
                f"{row['error']:.0f}",
            ]
            for row in rows
        ],
    )


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
