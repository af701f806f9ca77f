"""Estimators that know what they will say, and say when they were asked, for tests of whole benchmarks."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from systems import linear_logs
from vlbm.errors import InputError
from vlbm.estimand import Estimand
from vlbm.experiments.plan import Cell, Question, plan_cells
from vlbm.experiments.row_store import KnownTask
from vlbm.policies.function import as_policy
from vlbm.results.estimate import from_returns
from vlbm.results.estimates import Estimates

LOGS = linear_logs()
TRUTH = {"poor": 0.0, "middling": 1.0, "good": 4.0}
WATCHING = ("diary", "seconds")


def left_half(seen: np.ndarray) -> np.ndarray:
    return seen[:, :2]


@dataclass(frozen=True)
class Known:
    """With seed s it says s more than its values; every fit and evaluation is a line of its diary."""

    values: tuple[float, ...] = (0.0, 1.0, 4.0)
    diary: str = ""
    fault: str = ""
    seconds: float = 0.0
    shared: bool = False  # whether it asks the cache for something

    def check_estimand(self, asked, space):
        if self.fault == "unable":
            raise InputError("cannot answer that")
        return asked

    def exclude(self, policies, estimand):
        return {}

    def fit(self, episodes, *, seed=0, directory=None, resume=False, cache=None, **options):
        self.write(f"fit {seed}")
        time.sleep(self.seconds)
        if self.shared:
            cache.recall("critic", lambda: self.write(f"shared {seed}"))
        if self.fault == "input":
            raise InputError("broken on purpose")
        if self.fault == "bug":
            raise ZeroDivisionError("nobody thought of this")
        if self.fault == "death":
            os.kill(os.getpid(), signal.SIGKILL)
        return self

    def evaluate(self, policies, *, discount, horizon, actions, seed=0, **options):
        if self.fault == "interrupted":
            raise KeyboardInterrupt
        rows = tuple(
            from_returns(name, [np.array([value + seed - 0.5, value + seed + 0.5])], length=1.0)
            for name, value in zip(policies, self.values, strict=True)
        )
        if self.fault == "overflow":
            rows = (*rows[:2], replace(rows[2], value=float("inf")))
        # Where there is more than one device, this is where it is seen.
        settings = {"devices": len(jax.local_devices())}
        return Estimates(
            rows, "known", seed, Estimand(discount, horizon, actions), settings, {}, {"evaluate": 2.0}
        )

    def write(self, line: str) -> None:
        if self.diary:
            with Path(self.diary).open("a") as file:
                file.write(line + "\n")


def made_question(*, discount: float = 0.9, logs=LOGS) -> Question:
    policies = {name: as_policy(left_half, name=name) for name in TRUTH}
    return Question(logs, policies, Estimand(discount, 15, "mean"))


def known_tasks(tasks: Sequence[str], question: Question) -> dict[str, KnownTask]:
    known = KnownTask.of(question, suite="made", environment="linear", truth=TRUTH)
    return dict.fromkeys(tasks, known)


def made_plan(
    tasks: Sequence[str] = ("one",), seeds: Sequence[int] = (0, 1), **estimators: Any
) -> list[Cell]:
    presets = {method: type(estimator)() for method, estimator in estimators.items()}
    cells = plan_cells(tasks, estimators, seeds, presets=presets)
    # How a test watches it is no setting of a cell.
    return [
        replace(cell, changes={name: value for name, value in cell.changes.items() if name not in WATCHING})
        for cell in cells
    ]


def read_diary(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.is_file() else []
