"""How much longer fitted Q evaluation takes for many policies than for one, measured in one run.

    python benchmarks/fqe_policies.py --json ratio.json

The policies are those of the gym suite; the logged steps are random numbers of the same sizes, for what
they are does not change the time. Every count is evaluated `--repeats` times and the shortest time is
taken: the first includes compilation, unless the programs are in the cache from an earlier run. The ratio
is one of processor time, which other work on the machine disturbs less than the clock.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np

from vlbm import make_estimator
from vlbm.episodes import Episodes
from vlbm.policies.base import Policy
from vlbm.suites.gym import target_policies

LENGTH = 1000


def logged(policies: dict[str, Policy], steps: int) -> Episodes:
    """Random steps, as many as asked for, in episodes of a thousand."""
    random = np.random.default_rng(0)
    policy = next(iter(policies.values()))
    episodes = max(steps // LENGTH, 1)
    count = episodes * LENGTH
    return Episodes(
        observation=random.normal(size=(count + episodes, policy.observation_size)).astype(np.float32),
        action=random.uniform(-1, 1, size=(count, policy.action_size)).astype(np.float32),
        reward=random.normal(size=count).astype(np.float32),
        length=np.full(episodes, LENGTH),
        terminated=np.zeros(episodes, bool),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--environment", default="halfcheetah", help="whose policies (default: halfcheetah)")
    parser.add_argument("--steps", type=int, default=200_000, help="logged steps (default: 200000)")
    parser.add_argument("--repeats", type=int, default=2, help="runs for every count (default: 2)")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="settings of fqe")
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()

    policies = target_policies(arguments.environment)
    evaluator = make_estimator("fqe", settings=arguments.set).fit(logged(policies, arguments.steps))
    seconds: dict[int, list[float]] = {}
    processor: dict[int, list[float]] = {}
    for count in (1, len(policies)):
        some = dict(list(policies.items())[:count])
        seconds[count], processor[count] = [], []
        for _ in range(arguments.repeats):
            began, before = time.perf_counter(), time.process_time()
            evaluator.evaluate(some)
            seconds[count].append(time.perf_counter() - began)
            processor[count].append(time.process_time() - before)
        print(
            f"{count:3d} policies: {min(processor[count]):7.1f} s of processor time, "
            f"{min(seconds[count]):.1f} s by the clock"
        )
    one, all_of_them = (min(times) for times in processor.values())
    print(f"{len(policies)} policies cost {all_of_them / one:.2f} times as much as one")
    if arguments.json:
        figures = {
            "environment": arguments.environment,
            "steps": arguments.steps,
            "settings": arguments.set,
            "policies": len(policies),
            "seconds": {str(count): times for count, times in seconds.items()},
            "processor_seconds": {str(count): times for count, times in processor.items()},
            "ratio": all_of_them / one,
        }
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
