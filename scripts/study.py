"""Fit one method on one task with several seeds and append rank, regret and error to a JSONL file."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

import vlbm
from vlbm.metrics import absolute_error, rank_correlation, regret
from vlbm.progress import TerminalProgress, silent
from vlbm.suites.base import Task
from vlbm.suites.pendulum import pendulum


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", help="'pendulum', or any name together with --data, --policies and --truth")
    parser.add_argument("--data", help="logged episodes")
    parser.add_argument("--policies", help="a glob pattern")
    parser.add_argument("--truth", type=Path, help="JSON: policy -> {'discounted': return by mean actions}")
    parser.add_argument("--method", default="vlbm")
    parser.add_argument("--preset", default="default")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", dest="settings")
    parser.add_argument(
        "--imagine", nargs="*", default=[], metavar="KEY=VALUE,...", help="evaluate with these settings too"
    )
    parser.add_argument("--seeds", nargs="*", type=int, default=[0])
    parser.add_argument("--label", default="")
    parser.add_argument("--quiet", action="store_true")
    parser.add_argument("--output", required=True, type=Path)
    arguments = parser.parse_args()

    task = pendulum() if arguments.data is None else load_task(arguments)
    true = np.array([task.truth[name] for name in task.policies])
    estimator = vlbm.make_estimator(arguments.method, arguments.preset, arguments.settings)
    progress = silent if arguments.quiet else TerminalProgress()
    for seed in arguments.seeds:
        fitted = estimator.fit(task.episodes, seed=seed, progress=progress)
        for variation in ["", *arguments.imagine]:
            changes = vlbm.parse_settings(type(estimator), [part for part in variation.split(",") if part])
            estimates = fitted.with_settings(**changes).evaluate(
                task.policies, discount=task.discount, horizon=task.horizon, progress=progress
            )
            row = {
                "task": task.name,
                "label": arguments.label,
                "method": arguments.method,
                "preset": arguments.preset,
                "settings": arguments.settings,
                "imagine": variation,
                "seed": seed,
                "rank": rank_correlation(estimates.values, true),
                "regret": regret(estimates.values, true),
                "mae": absolute_error(estimates.values, true),
                "validation": float(np.mean([history.best_score or np.nan for history in fitted.histories])),
                "steps": [history.best_step for history in fitted.histories],
                "seconds": {name: round(value, 1) for name, value in estimates.seconds.items()},
                "values": [round(value, 1) for value in estimates.values.tolist()],
                "truth": [round(value, 1) for value in true.tolist()],
            }
            append(arguments.output, row)


def load_task(arguments: argparse.Namespace) -> Task:
    policies = vlbm.load_policies(arguments.policies)
    facts = json.loads(arguments.truth.read_text())
    episodes = vlbm.load(arguments.data)
    truth = {name: facts[name]["discounted"] for name in policies}
    return Task(arguments.task or Path(arguments.data).stem, episodes, policies, truth, 0.995, 1000)


def append(path: Path, row: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
    shown = ("task", "label", "method", "imagine", "seed", "rank", "regret", "mae", "validation", "seconds")
    print({name: row[name] for name in shown}, flush=True)


if __name__ == "__main__":
    main()
