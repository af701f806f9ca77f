"""Gather what `vlbm compare --json` wrote into docs/results/methods.jsonl: a row for each method and seed."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import median

from vlbm.storage import write_text

TARGET = Path(__file__).resolve().parents[1] / "docs" / "results" / "methods.jsonl"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, help="JSON files, a task each")
    parser.add_argument("--output", type=Path, default=TARGET)
    arguments = parser.parse_args()
    rows = [row for path in arguments.files for row in rows_of(path)]
    write_text(arguments.output, "".join(json.dumps(row) + "\n" for row in rows))


def rows_of(path: Path) -> list[dict]:
    comparison = json.loads(path.read_text(encoding="utf-8"))
    return [
        {
            "task": comparison["task"],
            "method": method,
            "seed": estimates["seed"],
            "rank": score["rank_correlation"],
            "regret": score["regret"],
            "mae": score["absolute_error"],
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
                for name in estimates["policies"][0]["details"]
            },
            "truth": [round(value, 1) for value in comparison["truth"].values()],
        }
        for method, found in comparison["methods"].items()
        for estimates, score in zip(found["estimates"], found["scores"], strict=True)
    ]


if __name__ == "__main__":
    main()
