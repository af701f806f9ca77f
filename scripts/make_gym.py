r"""Choose the gym suite's policies from training snapshots and measure what they are truly worth.

First train, for every environment, one or more runs for the targets and another for the logging policies:

    python scripts/train_policies.py --environment Hopper-v5 --seed 0 --steps 240000 --snapshots 60 \
        --output runs/hopper-0
    python scripts/make_gym.py --name hopper --targets runs/hopper-0 --logging runs/hopper-1

Everything measured is appended to a file beside the snapshots, so an interrupted run goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from selection import at_levels, logging_indices, logging_names, summary, without_gaps
from train_policies import OPTIONS, untrained_policy
from vlbm.policies import load_policy, save_policy
from vlbm.suites.simulate import simulate

ENVIRONMENTS = {
    "halfcheetah": "HalfCheetah-v5",
    "hopper": "Hopper-v5",
    "walker2d": "Walker2d-v5",
    "ant": "Ant-v5",
}
HORIZON = 1000
DISCOUNT = 0.995
TARGETS = 11
SELECTION_EPISODES = 3
TRUTH_EPISODES = 100
SELECTION_SEED, TRUTH_SEED = 100, 200
DATA = Path(__file__).parents[1] / "src" / "vlbm" / "suites" / "data"


def once(path: Path, key: str, measure: Callable[[], Any]) -> Any:
    """What was measured under this key, now or in an earlier run."""
    if path.is_file():
        for line in path.read_text().splitlines():
            row = json.loads(line)
            if row["key"] == key:
                return row["value"]
    value = measure()
    with path.open("a") as file:
        file.write(json.dumps({"key": key, "value": value}) + "\n")
    print(key, json.dumps(value), flush=True)
    return value


def returns(environment: str, path: Path, *, actions: Any, episodes: int, seed: int) -> dict[str, Any]:
    """Mean and standard error of a policy's returns, discounted and not."""
    run = simulate(
        environment,
        load_policy(path),
        seed=seed,
        horizon=HORIZON,
        episodes=episodes,
        actions=actions,
        options=OPTIONS.get(environment, {}),
    )
    return {
        "discounted": summary(run.returns(DISCOUNT)),
        "undiscounted": summary(run.returns()),
        "length": round(float(run.length.mean()), 1),
    }


def step_of(path: Path) -> int:
    return int(path.stem.removeprefix("step_"))


def first_look(environment: str, run: Path, actions: str, kind: str) -> list[tuple[Path, float]]:
    """Every snapshot of a run with a rough value, in the order of training."""
    return [
        (
            path,
            once(
                run / "first_look.jsonl",
                f"{actions} {path.stem}",
                partial(
                    returns,
                    environment,
                    path,
                    actions=actions,
                    episodes=SELECTION_EPISODES,
                    seed=SELECTION_SEED,
                ),
            )[kind]["value"],
        )
        for path in sorted(run.glob("step_*.safetensors"))
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--name", choices=list(ENVIRONMENTS), required=True)
    parser.add_argument("--targets", type=Path, nargs="+", required=True, help="directories of snapshots")
    parser.add_argument("--logging", type=Path, required=True, help="directory of another seed's snapshots")
    parser.add_argument("--output", type=Path, default=DATA)
    arguments = parser.parse_args()
    environment, output = ENVIRONMENTS[arguments.name], arguments.output / arguments.name
    output.mkdir(parents=True, exist_ok=True)

    targets = [
        candidate
        for run in arguments.targets
        for candidate in first_look(environment, run, "mean", "discounted")
    ]
    values = [value for _, value in targets]

    def truth(index: int, actions: str) -> dict[str, Any]:
        path = targets[index][0]
        measure = partial(
            returns, environment, path, actions=actions, episodes=TRUTH_EPISODES, seed=TRUTH_SEED
        )
        return once(path.parent / "truth.jsonl", f"{actions} {path.stem}", measure)

    chosen = without_gaps(
        at_levels(values, np.linspace(0, 1, TARGETS)),
        values,
        lambda index: truth(index, "mean")["discounted"]["value"],
    )
    policies = {}
    for number, index in enumerate(chosen):
        path, name = targets[index][0], f"policy_{number:02d}"
        shutil.copyfile(path, output / f"{name}.safetensors")
        policies[name] = {
            "mean_actions": truth(index, "mean"),
            "sampled_actions": truth(index, "sample"),
            "training_seed": seed_of(path),
            "training_step": step_of(path),
        }

    candidates = first_look(environment, arguments.logging, "sample", "undiscounted")
    loggers = logging_indices([value for _, value in candidates])
    names = {}
    for index in {loggers.expert, loggers.medium, *loggers.replay}:
        path = candidates[index][0]
        names[index] = f"logging_{step_of(path):07d}"
        shutil.copyfile(path, output / f"{names[index]}.safetensors")
    # Untrained weights depend on the seed alone, so they need no snapshot.
    seed = seed_of(candidates[0][0])
    save_policy(untrained_policy(environment, seed), output / "logging_random.safetensors")
    example = load_policy(output / "policy_00.safetensors")
    facts = {
        "environment": environment,
        "options": OPTIONS.get(environment, {}),
        "horizon": HORIZON,
        "discount": DISCOUNT,
        "observation_size": example.observation_size,
        "action_size": example.action_size,
        "episodes_per_truth": TRUTH_EPISODES,
        "source": (
            "Made by scripts/make_gym.py from snapshots of soft actor-critic (scripts/train_policies.py). "
            f"True returns are means over {TRUTH_EPISODES} simulated episodes (seed {TRUTH_SEED}); logging "
            "policies come from another training seed than the targets."
        ),
        "policies": policies,
        "logging": logging_names(loggers, names),
        "logging_seed": seed,
    }
    (output / "truth.json").write_text(json.dumps(facts, indent=2) + "\n")


def seed_of(path: Path) -> int:
    """The training seed, which ends the name of the run's directory."""
    found = re.search(r"(\d+)$", path.parent.name)
    if found is None:
        raise SystemExit(f"{path.parent}: the directory's name should end with the training seed")
    return int(found[1])


if __name__ == "__main__":
    main()
