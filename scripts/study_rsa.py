"""What the alignment term (RSA) does: C1 in {0, 0.1, 1, 10, 100}, over pairs of units or as mean squares.

    python scripts/study_rsa.py             # 54 short fits, about 30 minutes on two quiet cores
    python scripts/study_rsa.py --tasks pendulum --seeds 0

One model of the default settings a row, trained for 300 steps; everything but C1 and its kind stays as it is.
Rows that are there already are skipped, so a run that was stopped goes on. True returns only score.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

import accuracy
from vlbm.cores import use_cores

OUTPUT = Path(__file__).resolve().parents[1] / "docs" / "results" / "rsa.jsonl"
TASKS = ("pendulum", "hopper-kin")
WEIGHTS = (0.0, 0.1, 1.0, 10.0, 100.0)
KINDS = ("pairwise", "mse")
SHORT = ["steps=300", "validate_every=150", "models=1", "keep=none"]


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--tasks", nargs="+", default=TASKS, choices=accuracy.TASKS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--output", type=Path, default=OUTPUT)
    arguments = parser.parse_args()
    use_cores()
    from vlbm.estimators.shared_cache import SharedCache

    done = {accuracy.identify(row) for row in accuracy.read(arguments.output)}
    # Seeds come first, so that a run that was stopped has compared all settings with some of them.
    for name, seed in itertools.product(arguments.tasks, arguments.seeds):
        missing = [setting for setting in settings() if (label(*setting), name, "vlbm", seed) not in done]
        task = accuracy.load_task(name) if missing else None
        for weight, kind in missing:
            chosen = [*SHORT, f"rsa={kind}", f"rsa_weight={weight:g}"]
            row = accuracy.measure(task, "vlbm", "default", chosen, seed, SharedCache(2))
            row = {"label": label(weight, kind), "C1": weight, "kind": kind, **row}
            accuracy.append(arguments.output, row)


def settings() -> list[tuple[float, str]]:
    """Without the term its kind does not matter."""
    return [(0.0, "pairwise"), *((weight, kind) for kind in KINDS for weight in WEIGHTS[1:])]


def label(weight: float, kind: str) -> str:
    return f"C1 = {weight:g}, {kind}" if weight else "C1 = 0"


if __name__ == "__main__":
    main()
