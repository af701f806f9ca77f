"""SCOPE-RL's importance estimators on given probabilities; runs in SCOPE-RL's own environment."""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import numpy as np
from scope_rl.ope.discrete import (
    PerDecisionImportanceSampling,
    SelfNormalizedPDIS,
    SelfNormalizedTIS,
    TrajectoryWiseImportanceSampling,
)

# By vlbm's names.
ESTIMATORS = {
    "is": TrajectoryWiseImportanceSampling,
    "wis": SelfNormalizedTIS,
    "pdis": PerDecisionImportanceSampling,
    "wpdis": SelfNormalizedPDIS,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, help="steps and probabilities, as importance.py writes them")
    parser.add_argument("--discount", type=float, default=0.995)
    parser.add_argument("--resamples", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    with np.load(arguments.data) as data:
        probabilities = data["probabilities"].astype(np.float64)  # [policies, steps, actions]
        logged = {
            "step_per_trajectory": int(data["length"]),
            "action": data["action"].astype(int),
            "reward": data["reward"].astype(np.float64),
            "pscore": np.exp(data["log_prob"].astype(np.float64)),
            "gamma": arguments.discount,
        }
    found = {}
    for name, estimator in ESTIMATORS.items():
        times, values = [], []
        for _ in range(arguments.repeats):
            began = clock()
            values = []
            for policy in probabilities:
                given = {**logged, "evaluation_policy_action_dist": policy}
                values.append(float(estimator().estimate_policy_value(**given)))
                estimator().estimate_interval(
                    **given, n_bootstrap_samples=arguments.resamples, random_state=0
                )
            times.append(clock() - began)
        found[name] = {"seconds": min(times), "values": values}
    print(json.dumps(found))


def clock() -> float:
    """As vlbm is timed: processor time on one core, else the time of day."""
    return time.process_time() if len(os.sched_getaffinity(0)) == 1 else time.perf_counter()


if __name__ == "__main__":
    main()
