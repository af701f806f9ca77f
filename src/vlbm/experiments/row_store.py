"""RowStore: the rows of a benchmark, and the checkpoints of cells that are not finished yet."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from vlbm.errors import InputError
from vlbm.estimand import Estimand
from vlbm.experiments.executors.base import Failure, Finished, Outcome
from vlbm.experiments.plan import Cell, Question
from vlbm.experiments.rows import Row, Value, locate_row, read_row, write_row
from vlbm.experiments.run import Store
from vlbm.results.estimates import Estimates
from vlbm.results.metrics import absolute_error, dope_regret, rank_correlation, regret
from vlbm.storage import write_text
from vlbm.version import VERSION

CHECKPOINTS = "cells"
ERRORS = "errors"  # of cells that failed for a reason that is not the user's


@dataclass(frozen=True)
class KnownTask:
    """What rows say of a task, with the true returns that score them and do nothing else."""

    suite: str
    environment: str
    truth: Mapping[str, float]
    estimand: Estimand  # which the truth is of
    data: Mapping[str, Any]  # checksum, episodes, steps

    @classmethod
    def of(cls, question: Question, *, suite: str, environment: str, truth: Mapping[str, float]) -> KnownTask:
        log = question.episodes
        data = {"checksum": question.fingerprint, "episodes": log.count, "steps": log.steps}
        return cls(suite, environment, dict(truth), question.estimand, data)


class RowStore(Store[Row]):
    """One row for every cell in DIR/rows, written as a whole when the cell has finished or failed.

    A row that was made from other data, by another version or of another estimand is an error that names it.
    Failed cells count as done, unless they are to be tried again.
    """

    def __init__(
        self,
        directory: Path,
        tasks: Mapping[str, KnownTask],
        *,
        retry_failed: bool = False,
    ):
        self.directory = directory
        self.tasks = tasks
        self.retry_failed = retry_failed

    def find(self, cell: Cell) -> Row | None:
        """The row of a cell, whatever it was made from."""
        path = self._locate(cell)
        return read_row(self.directory, path) if path.is_file() else None

    def load(self, cell: Cell) -> Row | None:
        row = self.find(cell)
        if row is None:
            return None
        self._check_origin(cell, row)
        if row.failed is not None and self.retry_failed:
            return None
        # A process that was killed between writing the row and removing them has left them.
        self._remove_checkpoints(cell)
        return row

    def prepare(self, cell: Cell) -> Cell:
        place = self._place_checkpoints(cell).absolute()
        place.parent.mkdir(parents=True, exist_ok=True)  # where it is not seen, no checkpoints are kept
        return cell.keep_in(place, resume=True)

    def keep(self, cell: Cell, outcome: Outcome) -> Row:
        row = self._make_row(cell, outcome)
        write_row(self.directory, row, outcome.latents if isinstance(outcome, Finished) else None)
        self._remove_checkpoints(cell)
        if isinstance(outcome, Failure) and outcome.trace is not None:
            path = self._locate(cell)
            write_text(self.directory / ERRORS / path.parent.name / f"{path.stem}.txt", outcome.trace)
        return row

    def tidy(self) -> None:
        """Remove the folder of checkpoints if there are none."""
        with suppress(OSError):
            (self.directory / CHECKPOINTS).rmdir()

    def _check_origin(self, cell: Cell, row: Row) -> None:
        known = self.tasks[cell.task]
        # Methods that weigh actions may answer for sampled ones.
        answered = (known.estimand, replace(known.estimand, actions="sample"))
        differing = {
            "other data": row.data["checksum"] != known.data["checksum"],
            "another version of vlbm": row.version != VERSION,
            "another estimand": row.estimand not in answered,
            "other policies": row.truth is not None and dict(row.truth) != known.truth,
        }
        names = [name for name, differs in differing.items() if differs]
        if names:
            raise InputError(
                f"{self._locate(cell)}: was made with {' and '.join(names)}; give the benchmark "
                "another directory, or delete the file to run its cell again"
            )

    def _make_row(self, cell: Cell, outcome: Outcome) -> Row:
        known = self.tasks[cell.task]
        common: dict[str, Any] = {
            "task": cell.task,
            "suite": known.suite,
            "environment": known.environment,
            "method": cell.method,
            "preset": cell.preset,
            "settings": cell.changes,
            "seed": cell.seed,
            "version": VERSION,
            "data": dict(known.data),
            "truth": dict(known.truth),
        }
        if isinstance(outcome, Failure):
            return Row(
                **common,
                estimand=known.estimand,
                seconds={"fit": math.nan, "evaluate": math.nan},
                peak_memory=None,
                policies={},
                failed=outcome.reason or "for a reason that it did not say",
            )
        found = outcome.estimates
        values = {
            row.policy: Value(
                float(row.value), *map(_finite_or_nan, (row.standard_error, row.lower, row.upper))
            )
            for row in found
        }
        wild = [name for name, value in values.items() if not math.isfinite(value.value)]
        if wild:
            return self._make_row(cell, Failure(f"the value of {', '.join(wild)} is not a finite number"))
        return Row(
            **common,
            estimand=found.estimand,
            seconds={name: float(found.seconds.get(name, math.nan)) for name in ("fit", "evaluate")},
            peak_memory=outcome.peak_memory,
            policies=values,
            scores=score(found, known.truth) if found.estimand == known.estimand else None,
            branch_weights=outcome.branch_weights,
        )

    def _locate(self, cell: Cell) -> Path:
        return locate_row(self.directory, cell.task, cell.method, cell.preset, cell.changes, cell.seed)

    def _place_checkpoints(self, cell: Cell) -> Path:
        """Checkpoints from other data are never met: their place is named after the data."""
        path = self._locate(cell)
        name = f"{path.parent.name}-{path.stem}-{self.tasks[cell.task].data['checksum'][:8]}"
        return self.directory / CHECKPOINTS / name

    def _remove_checkpoints(self, cell: Cell) -> None:
        shutil.rmtree(self._place_checkpoints(cell), ignore_errors=True)


def score(found: Estimates, truth: Mapping[str, float]) -> dict[str, float]:
    """Against the truth of the policies that have a value; NaN where a metric has none."""
    true = np.array([truth[row.policy] for row in found])
    several = len(true) > 1
    return {
        "rank_correlation": float(rank_correlation(found.values, true)) if several else math.nan,
        "regret": float(regret(found.values, true)) if several else math.nan,
        "dope_regret": float(dope_regret(found.values, true)) if several else math.nan,
        "absolute_error": float(absolute_error(found.values, true)),
    }


def _finite_or_nan(value: float) -> float:
    """Without an end to an interval nobody can say how sure a value is."""
    return float(value) if math.isfinite(value) else math.nan
