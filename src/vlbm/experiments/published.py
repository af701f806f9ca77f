"""What the paper published, to stand beside our own numbers of the same tasks."""

from __future__ import annotations

import csv
from functools import cache
from importlib.resources import files
from typing import NamedTuple

SUITE = "dope"
# DOPE, and the paper after it, calls IS what is self-normalised and step by step.
OURS = {"is": "wpdis"}
NAMES = {"wpdis": "IS"}


class Published(NamedTuple):
    mean: float
    deviation: float  # over three seeds
    best: bool  # printed in bold


@cache
def read_published() -> dict[tuple[str, str, str], Published]:
    """By metric, task and method; names of all three are ours."""
    text = (files("vlbm.experiments") / "data" / "paper_results.csv").read_text(encoding="utf-8")
    found = {}
    for row in csv.DictReader(line for line in text.splitlines() if not line.startswith("#")):
        metric, task = row.pop("metric"), f"{SUITE}/{row.pop('task')}"
        for method, cell in row.items():
            if cell:
                mean, deviation, *best = cell.split()
                found[metric, task, OURS.get(method, method)] = Published(
                    float(mean), float(deviation), bool(best)
                )
    return found


def published_tasks() -> tuple[str, ...]:
    """All 32, in the order of the paper's tables."""
    return tuple(dict.fromkeys(task for _, task, _ in read_published()))
