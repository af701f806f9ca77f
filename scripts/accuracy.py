"""How accurate methods are on tasks that their logs can answer: kin tasks and Pendulum, several seeds.

    python scripts/accuracy.py --label today --methods vlbm ff ar --seeds 0 1 2

In a kin task the targets are snapshots of the training run that logged, so that most of what they do was
seen: the suite's medium-expert logs of Hopper and Walker2d with the other snapshots of their run; for
HalfCheetah two of the suite's targets log 100,000 steps each and the others are judged (its loggers run on
nose or back, nobody else does), and as `halfcheetah-log-kin` the medium-expert log with its own run. True
returns of snapshots are simulated once, by mean actions, and kept in the user's cache. Rows that are there
already are skipped, so a run that was stopped goes on; `make tables` writes them into the documents.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from vlbm.cores import use_cores

OUTPUT = Path(__file__).resolve().parents[1] / "docs" / "results" / "accuracy.jsonl"
TASKS = ("pendulum", "hopper-kin", "walker2d-kin", "halfcheetah-kin", "halfcheetah-log-kin")
LOGGERS = ("policy_05", "policy_10")  # of HalfCheetah
TRUTH_EPISODES, TRUTH_SEED = 100, 200
STEPS = 200_000
WORLDS = ("vlbm", "ff", "ar")
MEAN = "mean of the three"


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--label", required=True, help="what the rows are called in tables")
    parser.add_argument("--tasks", nargs="+", default=TASKS[:4], choices=TASKS)
    parser.add_argument("--methods", nargs="+", default=WORLDS)
    parser.add_argument("--preset", default="default")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", dest="settings")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--output", type=Path, default=OUTPUT)
    arguments = parser.parse_args()
    use_cores()
    from vlbm.estimators.shared_cache import SharedCache

    done = {identify(row) for row in read(arguments.output)}
    for name in arguments.tasks:
        todo = {
            seed: [
                method for method in arguments.methods if (arguments.label, name, method, seed) not in done
            ]
            for seed in arguments.seeds
        }
        task = load_task(name) if any(todo.values()) else None
        for seed, methods in todo.items():
            cache = SharedCache(2)  # critics that dr and wdr take from fqe, and the cloned behaviour policy
            for method in methods:
                row = measure(task, method, arguments.preset, arguments.settings, seed, cache)
                append(arguments.output, {"label": arguments.label, **row})


def load_task(name: str) -> Any:
    """The task of that name; what has to be simulated for it is kept in the user's cache."""
    from vlbm.suites import gym
    from vlbm.suites.base import Task
    from vlbm.suites.pendulum import load_pendulum

    if name == "pendulum":
        return load_pendulum()
    environment = name.partition("-")[0]
    facts = gym.read_facts(environment)
    if name == "halfcheetah-kin":
        policies, truth = gym.load_target_policies(environment), gym.read_truth(environment)
        targets = {target: policy for target, policy in policies.items() if target not in LOGGERS}
        episodes = log_by(name, facts, {logger: policies[logger] for logger in LOGGERS})
    else:
        logging = facts["logging"]
        # The random policy is the run's first snapshot: one of the two is enough.
        left_out = (logging["random"], logging["medium"], logging["expert"])
        others = [name for name in logging["replay"] if name not in left_out]
        targets = {target: gym.load_logging_policy(environment, target) for target in others}
        episodes = gym.load_data(f"{environment}-medium-expert")
        truth = {target: simulate_truth(environment, target, policy) for target, policy in targets.items()}
    true = {target: truth[target] for target in targets}
    return Task(name, episodes, targets, true, facts["discount"], facts["horizon"])


def log_by(name: str, facts: dict[str, Any], policies: dict[str, Any]) -> Any:
    from vlbm.data.episodes import concatenate
    from vlbm.suites.cache import data_path, load_or_make
    from vlbm.suites.simulate import simulate

    def make() -> Any:
        return concatenate(
            [
                simulate(
                    facts["environment"],
                    policy,
                    seed=1000 + number,
                    horizon=facts["horizon"],
                    steps=STEPS // len(policies),
                    options=facts["options"],
                )
                for number, policy in enumerate(policies.values())
            ]
        )

    recipe = {"name": name, "loggers": list(policies), "environment": facts["environment"]}
    return load_or_make(data_path(name, steps=STEPS, seed=0), recipe, make)


def simulate_truth(environment: str, name: str, policy: Any) -> float:
    from vlbm.storage import cache_directory, write_text
    from vlbm.suites import gym
    from vlbm.suites.simulate import simulate

    facts = gym.read_facts(environment)
    path = cache_directory() / "data" / f"{environment}_{name}_truth.json"
    if not path.is_file():
        run = simulate(
            facts["environment"],
            policy,
            seed=TRUTH_SEED,
            horizon=facts["horizon"],
            episodes=TRUTH_EPISODES,
            actions="mean",
            options=facts["options"],
        )
        write_text(path, json.dumps(float(run.returns(facts["discount"]).mean())))
    return float(json.loads(path.read_text(encoding="utf-8")))


def measure(
    task: Any, method: str, preset: str, settings: list[str], seed: int, cache: Any
) -> dict[str, Any]:
    """Fit a method with its settings to a task's log and say what it estimates."""
    import vlbm

    estimator = vlbm.make_estimator(method, preset, settings)
    asked = vlbm.Estimand(task.discount, task.horizon, task.actions)
    if estimator.check_estimand(asked, task.episodes) != asked:
        raise SystemExit(f"{method}: the true returns of {task.name} are not of what it estimates")
    fitted = estimator.fit(task.episodes, seed=seed, cache=cache)
    estimates = fitted.evaluate(
        task.policies, discount=task.discount, horizon=task.horizon, actions=task.actions, seed=seed
    )
    histories = getattr(fitted, "histories", ())
    return {
        "task": task.name,
        "method": method,
        "preset": preset,
        "settings": settings,
        "seed": seed,
        "validation": [round(float(history.best_score), 5) for history in histories],
        "loss": [round(history.entries[-1]["loss"], 3) for history in histories],
        "best_step": [history.best_step for history in histories],
        "seconds": {part: round(value, 1) for part, value in estimates.seconds.items()},
        "values": [round(float(value), 2) for value in estimates.values],
        # Methods without models of a world are one model.
        "by_model": [np.round(row.model_values or [row.value], 2).tolist() for row in estimates],
        "truth": [round(task.truth[target], 2) for target in task.policies],
        "warned": [bool(row.warnings) for row in estimates],
    }


def group_by_method(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Rows of every method by seed, and the mean of the world models where all of them are there."""
    found = {(row["method"], row["seed"]): row for row in rows}
    seeds = sorted({seed for _, seed in found})
    if found and all((world, seed) in found for world in WORLDS for seed in seeds):
        for seed in seeds:
            values = np.mean([found[world, seed]["values"] for world in WORLDS], axis=0)
            found[MEAN, seed] = {**found[WORLDS[0], seed], "values": values, "seconds": {}}
    methods = dict.fromkeys(method for method, _ in found)
    return {method: [found[method, seed] for seed in seeds if (method, seed) in found] for method in methods}


def identify(row: dict[str, Any]) -> tuple[str, str, str, int]:
    return row["label"], row["task"], row["method"], row["seed"]


def read(path: Path) -> list[dict[str, Any]]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return [json.loads(line) for line in lines]


def append(path: Path, row: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
    shown = ("label", "task", "method", "seed", "validation", "seconds")
    print({name: row[name] for name in shown}, flush=True)


if __name__ == "__main__":
    main()
