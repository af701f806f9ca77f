"""How well each way of imagining foretells logging policies that were left out of the training data."""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np

import vlbm
from vlbm.data.episodes import Episodes
from vlbm.estimators.likelihood import log_probs
from vlbm.policies.base import Policy
from vlbm.progress import TerminalProgress
from vlbm.suites import gym

SAMPLING = ("latents", "all", "none")
REENCODING = (5, 10, 20, None)
LEFT_OUT = slice(2, None, 3)  # every third logging policy, the best among them


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--environments", nargs="*", default=["halfcheetah", "hopper", "walker2d", "ant"])
    parser.add_argument("--steps", type=int, default=gym.STEPS)
    parser.add_argument(
        "--set", nargs="*", default=["models=1", "keep=none"], metavar="KEY=VALUE", dest="settings"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", required=True, type=Path)
    arguments = parser.parse_args()
    for environment in arguments.environments:
        study(environment, arguments)


def study(environment: str, arguments: argparse.Namespace) -> None:
    facts = gym.read_facts(environment)
    progress = TerminalProgress()
    episodes = gym.load_data(f"{environment}-medium-replay", steps=arguments.steps, progress=progress)
    loggers = {
        part.policy: gym.load_logging_policy(environment, part.policy)
        for part in gym.recipe_parts(facts, "medium-replay")
    }
    logger = who_logged(episodes, loggers)
    returns = episodes.returns(facts["discount"])
    # Two snapshots before the first update are the same policy: the episodes then count for the first.
    logged = np.array(
        [
            returns[logger == index].mean() if (logger == index).any() else np.nan
            for index in range(len(loggers))
        ]
    )
    unseen = list(loggers)[LEFT_OUT]
    seen = np.isin(logger, np.arange(len(loggers))[LEFT_OUT], invert=True)
    estimator = vlbm.make_estimator("vlbm", settings=arguments.settings)
    fitted = estimator.fit(episodes.select(np.flatnonzero(seen)), seed=arguments.seed, progress=progress)
    for sampling, every in itertools.product(SAMPLING, REENCODING):
        estimates = fitted.with_settings(sampling=sampling, reencode_every=every).evaluate(
            {name: loggers[name] for name in unseen},
            discount=facts["discount"],
            horizon=facts["horizon"],
            actions="sample",
            progress=progress,
        )
        append(
            arguments.output,
            {
                "environment": environment,
                "sampling": sampling,
                "reencode_every": every,
                "seed": arguments.seed,
                "settings": arguments.settings,
                "policies": unseen,
                "imagined": [round(value, 1) for value in estimates.values.tolist()],
                "logged": [round(value, 1) for value in logged[LEFT_OUT].tolist()],
                # Of the range over all loggers, so that environments count alike.
                "error": float(
                    np.abs(estimates.values - logged[LEFT_OUT]).mean()
                    / (np.nanmax(logged) - np.nanmin(logged))
                ),
                "validation": fitted.histories[0].best_score,
            },
        )


def who_logged(episodes: Episodes, loggers: dict[str, Policy]) -> np.ndarray:
    """The number of the policy whose log-probabilities are nearest to those logged, for every episode."""
    found = log_probs(loggers, episodes)
    distance = np.array(
        [np.bincount(episodes.episode_of_step, np.abs(found[name] - episodes.log_prob)) for name in loggers]
    )
    return distance.argmin(axis=0)


def append(path: Path, row: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
