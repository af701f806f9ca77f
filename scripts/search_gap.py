"""How much a search over settings loses because it does not see the truth: Pendulum, the paper's grid.

    python scripts/search_gap.py            # about 15 minutes on two quiet cores
    python scripts/search_gap.py --quick    # a look at it in two minutes

Halves the paper's grid of learning rates and constants (its `paper` preset, shortened) by the error of
predictions on held-out episodes, and scores every candidate by true returns beside it. The scores by truth
choose nothing: they stand under `oracle` in every row, and say what an oracle would have chosen. Rows that
are there already are not made again, so that a run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from vlbm.cores import available_cores, use_cores

OUTPUT = Path(__file__).resolve().parents[1] / "docs" / "results" / "search.jsonl"
# Batches of the preset's 64 whole episodes would take four times as long.
FULL = ("steps=243", "batch=16", "validate_every=1000")
QUICK = ("steps=9", "batch=4", "branches=2", "latents=4", "units=8", "head_units=8", "g_units=8",
         "validate_every=1000")  # fmt: skip
QUICK_CANDIDATES = slice(0, 56, 14)


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--quick", action="store_true", help="four candidates and a tiny model")
    parser.add_argument("--drive", choices=("own", "encoder"), default="own", help="of the branches")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=available_cores(), help="candidates at once")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    arguments = parser.parse_args()
    if arguments.quick and arguments.output == OUTPUT:
        parser.error("--quick: is only a look; give it an --output of its own")
    use_cores()
    from vlbm.estimators.registry import make_estimator
    from vlbm.experiments.executors.local import LocalExecutor
    from vlbm.experiments.grids import PAPER_GRID
    from vlbm.suites import load_task

    sizes, grid = (QUICK, PAPER_GRID[QUICK_CANDIDATES]) if arguments.quick else (FULL, PAPER_GRID)
    if arguments.drive != "own":
        sizes = (*sizes, f"drive={arguments.drive}")
    search = Search(
        task=load_task("pendulum"),
        estimator=make_estimator("vlbm", "paper", sizes),
        sizes=sizes,
        seed=arguments.seed,
        output=arguments.output,
        executor=LocalExecutor(arguments.workers),
    )
    print_gap(search.run(grid))


class Search:
    """A halving whose candidates are scored by the truth as well, which decides nothing."""

    def __init__(
        self, *, task: Any, estimator: Any, sizes: Sequence[str], seed: int, output: Path, executor: Any
    ):
        self.task = task
        self.estimator = estimator
        self.seed = seed
        self.output = output
        self.executor = executor
        self.common = {"task": task.name, "preset": "paper", "changes": list(sizes), "seed": seed}

    def run(self, grid: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The rows of all candidates on every rung."""
        from vlbm.experiments.select import plan_rungs

        alive, found = [dict(settings) for settings in grid], []
        for rung in plan_rungs(len(grid), self.estimator.steps, "halving"):
            rows = self.score(alive, rung.steps)
            found += rows
            ranked = sorted(rows, key=lambda row: math.inf if row["score"] is None else row["score"])
            alive = [row["settings"] for row in ranked[: rung.keep]]
        return found

    def score(self, candidates: Sequence[dict[str, Any]], steps: int) -> list[dict[str, Any]]:
        """A row for each, those that are missing made side by side."""
        stored = read(self.output)
        names = [self.identify(settings, steps) for settings in candidates]
        known = {name: row for row in stored if (name := self.name(row)) in names}
        missing = [settings for settings, name in zip(candidates, names, strict=True) if name not in known]
        for row in self.make(missing, steps):
            known[self.name(row)] = row
            stored.append(row)
            write(self.output, stored)
            print(
                {name: row[name] for name in ("settings", "steps", "score", "oracle", "seconds")}, flush=True
            )
        return [known[name] for name in names]

    def make(self, candidates: Sequence[dict[str, Any]], steps: int) -> Iterator[dict[str, Any]]:
        from dataclasses import replace

        from vlbm.estimand import Estimand
        from vlbm.experiments.executors.base import Failure
        from vlbm.experiments.plan import Cell, Question
        from vlbm.experiments.row_store import score

        task = self.task
        estimand = Estimand(task.discount, task.horizon, task.actions)
        question = Question(task.episodes, task.policies, estimand)
        cells = [
            Cell(
                task.name,
                "vlbm",
                replace(self.estimator, **settings, steps=steps),
                self.seed,
                changes=settings,
            )
            for settings in candidates
        ]
        for cell, outcome in self.executor.run(cells, lambda name: question):
            row = {**self.common, "settings": dict(cell.changes), "steps": steps}
            if isinstance(outcome, Failure):
                yield {**row, "score": None, "oracle": None, "seconds": None, "failed": outcome.reason}
                continue
            truth = score(outcome.estimates, task.truth)
            kept = ("rank_correlation", "regret", "absolute_error")
            yield {
                **row,
                "score": outcome.validation,
                "oracle": {name: round(truth[name], 4) for name in kept},
                "seconds": round(sum(outcome.estimates.seconds[part] for part in ("fit", "evaluate")), 1),
            }

    def identify(self, settings: Mapping[str, Any], steps: int) -> str:
        return self.name({**self.common, "settings": settings, "steps": steps})

    def name(self, row: Mapping[str, Any]) -> str:
        return json.dumps({name: row[name] for name in (*self.common, "settings", "steps")}, sort_keys=True)


def print_gap(rows: Sequence[Mapping[str, Any]]) -> None:
    """What was chosen without the truth, and what the oracle would have chosen."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from vlbm.experiments.oracle import Judged, measure_gap

    unknown = {"rank_correlation": math.nan, "regret": math.nan, "absolute_error": math.nan}
    gap = measure_gap(
        [
            Judged(
                row["settings"],
                row["steps"],
                math.inf if row["score"] is None else row["score"],
                **(row["oracle"] or unknown),
            )
            for row in rows
        ]
    )
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("choice", "settings", "steps", "score", "rank", "regret@1", "MAE"):
        table.add_column(name, justify="left" if name in ("choice", "settings") else "right", overflow="fold")
    for choice, one in gap.rows():
        settings = " ".join(f"{name}={value:g}" for name, value in one.settings.items())
        numbers = (f"{one.rank_correlation:.2f}", f"{one.regret:.2f}", f"{one.absolute_error:.1f}")
        table.add_row(choice, settings, str(one.steps), f"{one.score:.4g}", *numbers)
    Console().print(table)


def read(path: Path) -> list[dict[str, Any]]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return [json.loads(line) for line in lines]


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    from vlbm.storage import write_text

    write_text(path, "".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
