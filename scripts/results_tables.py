"""The tables of docs/results.md: the paper's preset, a search over its grid, and what alignment does."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from study_tables import scores, with_spread
from tabulating import ROOT, grouped, markdown
from vlbm.experiments.grids import describe_settings
from vlbm.experiments.oracle import Judged, measure_gap
from vlbm.experiments.published import read_published
from vlbm.experiments.rows import Row, read_rows
from vlbm.experiments.variants import Variant, list_variants, name_method

PAPER = ROOT / "docs" / "results" / "paper"
METRICS = ("rank_correlation", "regret", "dope_regret", "absolute_error")
DIGITS = (2, 2, 2, 0)


def paper_table(directory: Path = PAPER) -> str:
    """What the paper's preset reaches on every task, by drive, beside what the paper published of it."""
    rows = [row for row in read_rows(directory) if row.failed is None]
    lines = []
    for task in dict.fromkeys(row.task for row in rows):
        of_task = [row for row in rows if row.task == task]
        for variant in list_variants(of_task):
            own = [row for row in of_task if Variant.of(row) == variant]
            hours = np.array([sum(row.seconds.values()) / 3600 for row in own])
            setting = describe_settings(own[0].settings) or "drive=own"
            what = [task, name_method(variant.method), setting, len(own)]
            lines.append([*what, *map(_score, [own] * 4, METRICS, DIGITS), with_spread(hours, 2)])
        problem = of_task[0].problem
        published = [read_published().get((metric, problem, "vlbm")) for metric in METRICS]
        if any(published):
            cells = [
                f"{found.mean:.{digits}f} ± {found.deviation:.{digits}f}" if found else ""
                for found, digits in zip(published, DIGITS, strict=True)
            ]
            lines.append([f"{problem}, D4RL's data", "VLBM", "*as published*", 3, *cells, ""])
    scored = ["rank", "regret@1 (range)", "regret@1 (DOPE)", "MAE", "hours"]
    return markdown(["task", "method", "setting", "seeds", *scored], lines)


def _score(rows: list[Row], metric: str, digits: int) -> str:
    values = np.array([row.scores[metric] for row in rows if row.scores is not None])
    return with_spread(values, digits) if len(values) and np.isfinite(values).all() else ""


def search_table(rows: list[dict[str, Any]]) -> str:
    """The candidates that were trained the longest, with the score that chose and what an oracle saw."""
    longest = max(row["steps"] for row in rows)
    last = [row for row in rows if row["steps"] == longest and row["oracle"] is not None]
    return markdown(
        ["drive", "learning rate", "C1 = C2", "steps", "held-out error", "rank", "regret@1", "MAE"],
        [
            [drive, *_settings(row["settings"]), row["steps"], f"{row['score']:.4g}", *_judged(_judge(row))]
            for drive, own in _by_drive(last)
            for row in sorted(own, key=lambda row: row["score"])
        ],
    )


def gap_table(rows: list[dict[str, Any]]) -> str:
    """What the search chose without the truth, and what an oracle would have chosen of all candidates."""
    return markdown(
        ["drive", "choice", "learning rate", "C1 = C2", "steps", "rank", "regret@1", "MAE"],
        [
            [drive, choice, *_settings(one.settings), one.steps, *_judged(one)]
            for drive, own in _by_drive(rows)
            for choice, one in measure_gap([_judge(row) for row in own]).rows()
        ],
    )


def _by_drive(rows: list[dict[str, Any]]) -> list[tuple[str, list[dict[str, Any]]]]:
    found: dict[str, list[dict[str, Any]]] = {"own": [], "encoder": []}
    for row in rows:
        found["encoder" if "drive=encoder" in row["changes"] else "own"].append(row)
    return [(drive, own) for drive, own in found.items() if own]


def _settings(settings: Mapping[str, Any]) -> tuple[str, str]:
    return f"{settings['learning_rate']:g}", f"{settings['rsa_weight']:g}"


def _judge(row: dict[str, Any]) -> Judged:
    unknown = {"rank_correlation": math.nan, "regret": math.nan, "absolute_error": math.nan}
    score = math.inf if row["score"] is None else row["score"]
    return Judged(row["settings"], row["steps"], score, **(row["oracle"] or unknown))


def _judged(one: Judged) -> tuple[str, str, str]:
    return f"{one.rank_correlation:.2f}", f"{one.regret:.2f}", f"{one.absolute_error:.0f}"


def rsa_table(rows: list[dict[str, Any]]) -> str:
    """Every weight and kind of the alignment term, over seeds."""
    lines = []
    for (task,), of_task in grouped(rows, "task").items():
        for (label,), own in grouped(of_task, "label").items():
            ranks, regrets, errors = scores(own)
            validation = np.array([row["validation"] for row in own]).mean(axis=1)
            lines.append(
                [task, label, len(own), with_spread(validation, 3), with_spread(ranks, 2),
                 with_spread(regrets, 2), with_spread(100 * errors, 0)]
            )  # fmt: skip
    heading = ["task", "weight and kind", "seeds", "10-step error", "rank", "regret@1", "error, % of range"]
    return markdown(heading, lines)
