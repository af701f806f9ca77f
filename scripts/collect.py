"""Gather what `vlbm compare` kept into docs/results/methods.jsonl: a row for each method and seed.

    python scripts/collect.py runs/hopper-medium runs/walker2d-medium-replay

A directory that `--save` filled is named after its task of the gym suite; seeds still to come are left out.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from statistics import median
from typing import Any

from vlbm.estimand import Estimand
from vlbm.estimators.registry import METHODS
from vlbm.experiments.comparison import Comparison
from vlbm.results.estimates import Estimates
from vlbm.storage import write_text
from vlbm.suites.gym import read_facts, read_truth

TARGET = Path(__file__).resolve().parents[1] / "docs" / "results" / "methods.jsonl"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("places", nargs="+", type=Path, help="directories of --save, a task each")
    parser.add_argument("--output", type=Path, default=TARGET)
    arguments = parser.parse_args()
    rows = [row for place in arguments.places for row in rows_of(place)]
    write_text(arguments.output, "".join(json.dumps(row) + "\n" for row in rows))


def kept(place: Path) -> Comparison:
    """Everything finished in a directory, as one comparison."""
    estimates: dict[str, tuple[Estimates, ...]] = {}
    for method in METHODS:
        files = [path for path in place.iterdir() if re.fullmatch(rf"{method}-\d+\.safetensors", path.name)]
        found = sorted(map(Estimates.load, files), key=lambda part: part.seed)
        estimates |= {method: tuple(found)} if found else {}
    names = tuple(row.policy for row in next(iter(estimates.values()))[0])
    environment = place.name.partition("-")[0]
    facts = read_facts(environment)
    asked = Estimand(facts["discount"], facts["horizon"], "mean")
    return Comparison(names, asked, estimates, {}, read_truth(environment), place.name)


def rows_of(place: Path) -> list[dict[str, Any]]:
    comparison = kept(place).to_json()
    return [
        {
            "task": comparison["task"],
            "method": method,
            "seed": estimates["seed"],
            "estimand": estimates["estimand"]["text"],
            # Nothing where the truth is not of what the method estimates.
            "rank": score.get("rank_correlation"),
            "regret": score.get("regret"),
            "mae": score.get("absolute_error"),
            "seconds": round(estimates["seconds"]["fit"] + estimates["seconds"]["evaluate"], 1),
            "processor": round(estimates["seconds"]["processor"], 1)
            if "processor" in estimates["seconds"]
            else None,
            "settings": estimates["settings"],
            "values": [round(row["value"], 1) for row in estimates["policies"]],
            "lower": [round(row["lower"], 1) for row in estimates["policies"]],
            "upper": [round(row["upper"], 1) for row in estimates["policies"]],
            "doubted": sum(bool(row["warnings"]) for row in estimates["policies"]),
            "details": {
                name: float(f"{median(row['details'][name] for row in estimates['policies']):.3g}")
                for name in estimates["policies"][0].get("details", {})
            },
            "truth": [round(value, 1) for value in comparison["truth"].values()],
        }
        for method, found in comparison["methods"].items()
        for estimates, score in zip(
            found["estimates"], found["scores"] or [{}] * len(found["estimates"]), strict=True
        )
    ]


if __name__ == "__main__":
    main()
