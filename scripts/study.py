"""Fit one setting on one data set with several seeds and append rank, regret and error to a JSONL file."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

import vlbm
from vlbm.progress import TerminalProgress, silent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--policies", required=True, help="a glob pattern")
    parser.add_argument(
        "--truth", required=True, type=Path, help="JSON: policy name -> {'discounted': value}"
    )
    parser.add_argument("--method", default="vlbm")
    parser.add_argument("--preset", default="default")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    parser.add_argument(
        "--imagine",
        nargs="*",
        default=[],
        metavar="KEY=VALUE[,KEY=VALUE]",
        help="also try these when evaluating",
    )
    parser.add_argument("--seeds", nargs="*", type=int, default=[0])
    parser.add_argument("--horizon", type=int)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--label", default="")
    parser.add_argument("--quiet", action="store_true")
    parser.add_argument("--output", required=True, type=Path)
    arguments = parser.parse_args()

    episodes = vlbm.load(arguments.data)
    policies = vlbm.load_policies(arguments.policies)
    truth_of = json.loads(arguments.truth.read_text())
    truth = np.array([truth_of[name]["discounted"] for name in policies])
    estimator = vlbm.make_estimator(arguments.method, arguments.preset, arguments.set)
    progress = silent if arguments.quiet else TerminalProgress()
    for seed in arguments.seeds:
        fitted = estimator.fit(episodes, seed=seed, progress=progress)
        if arguments.save:
            fitted.save(arguments.save / f"{arguments.label or arguments.method}-{seed}")
        variations = ["", *arguments.imagine]
        for variation in variations:
            changes = vlbm.parse_settings(type(estimator), [part for part in variation.split(",") if part])
            estimates = fitted.with_settings(**changes).evaluate(
                policies, horizon=arguments.horizon, progress=progress
            )
            row = {
                "data": Path(arguments.data).stem,
                "label": arguments.label,
                "method": arguments.method,
                "settings": arguments.set,
                "imagine": variation,
                "seed": seed,
                "rank": float(spearmanr(truth, estimates.values).statistic),
                "regret": float((truth.max() - truth[estimates.values.argmax()]) / np.ptp(truth)),
                "mae": float(np.abs(truth - estimates.values).mean()),
                "validation": min(history.best_score for history in fitted.histories),
                "best_step": [history.best_step for history in fitted.histories],
                "seconds": {name: round(value, 1) for name, value in estimates.seconds.items()},
                "values": [round(value, 1) for value in estimates.values.tolist()],
                "truth": [round(value, 1) for value in truth.tolist()],
            }
            with arguments.output.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(
                {
                    name: row[name]
                    for name in (
                        "data",
                        "label",
                        "imagine",
                        "seed",
                        "rank",
                        "regret",
                        "mae",
                        "validation",
                        "seconds",
                    )
                },
                flush=True,
            )


if __name__ == "__main__":
    main()
