"""The gym suite: policies and true returns come with the package, data sets are made on this machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import as_file, files
from typing import Any, NamedTuple

import numpy as np

from vlbm.data.episodes import Episodes, concatenate
from vlbm.errors import InputError, require
from vlbm.policies import load_policies, load_policy
from vlbm.policies.base import Policy
from vlbm.progress import Progress, silent
from vlbm.suites.base import Entry, Task
from vlbm.suites.cache import checksum, data_path, is_cached, load_or_make
from vlbm.suites.simulate import simulate

ENVIRONMENTS = ("halfcheetah", "hopper", "walker2d", "ant", "pendulum")
DATASETS = {
    "random": "an untrained policy",
    "medium": "a policy about half as good as the expert",
    "medium-replay": "the policies along a training run, up to the medium one",
    "medium-expert": "medium and expert, half each",
    "expert": "the best policy of its training run",
}
STEPS = 200_000


class Part(NamedTuple):
    """A logging policy and its share of the steps."""

    policy: str
    share: float


def list_names() -> tuple[str, ...]:
    return tuple(f"{environment}-{dataset}" for environment in ENVIRONMENTS for dataset in DATASETS)


def make_entry(name: str, *, steps: int = STEPS, seed: int = 0) -> Entry:
    """Metadata of a task, without simulating."""
    environment, dataset = _split_name(name)
    facts = read_facts(environment)
    recipe = _make_recipe(name, steps, seed)
    return Entry(
        name=name,
        suite="gym",
        environment=facts["environment"],
        dataset=dataset,
        steps=steps,
        observation_size=facts["observation_size"],
        action_size=facts["action_size"],
        policies=len(facts["policies"]),
        about=f"logged by {DATASETS[dataset]}",
        available=is_cached(data_path(name, steps=steps, seed=seed), recipe),
    )


def load_data(name: str, *, steps: int = STEPS, seed: int = 0, progress: Progress = silent) -> Episodes:
    """Logged episodes, simulated on first use (a minute or two) and kept in the user's cache."""
    if steps < 1:
        raise InputError(f"steps {steps}: must be at least 1")
    return load_or_make(
        data_path(name, steps=steps, seed=seed),
        _make_recipe(name, steps, seed),
        lambda: make_data(name, steps=steps, seed=seed, progress=progress),
    )


def load_task(name: str, *, steps: int = STEPS, seed: int = 0, progress: Progress = silent) -> Task:
    """The data with the 11 target policies and their true values."""
    environment, _ = _split_name(name)
    facts = read_facts(environment)
    return Task(
        name=name,
        episodes=load_data(name, steps=steps, seed=seed, progress=progress),
        policies=load_target_policies(environment),
        truth=read_truth(environment),
        discount=facts["discount"],
        horizon=facts["horizon"],
    )


def make_data(name: str, *, steps: int, seed: int, progress: Progress = silent) -> Episodes:
    """Simulate the logging policies of a data set; the same seed gives the same numbers."""
    environment, dataset = _split_name(name)
    facts = read_facts(environment)
    parts = []
    for number, part in enumerate(recipe_parts(facts, dataset)):
        parts.append(
            simulate(
                facts["environment"],
                load_logging_policy(environment, part.policy),
                seed=_derive_seed(name, seed, number),
                horizon=facts["horizon"],
                steps=max(round(part.share * steps), 1),
                options=facts["options"],
                progress=progress,
            )
        )
    return concatenate(parts)


def recipe_parts(facts: Mapping[str, Any], dataset: str) -> list[Part]:
    """The logging policies of a data set."""
    logging = facts["logging"]
    if dataset == "medium-replay":
        return [Part(policy, 1 / len(logging["replay"])) for policy in logging["replay"]]
    if dataset == "medium-expert":
        return [Part(logging["medium"], 0.5), Part(logging["expert"], 0.5)]
    return [Part(logging[dataset], 1.0)]


@cache
def read_facts(environment: str) -> dict[str, Any]:
    """Environment, horizon, true returns and logging policies, as scripts/make_gym.py wrote them."""
    text = (_data_directory() / environment / "truth.json").read_text(encoding="utf-8")
    return json.loads(text)


def load_target_policies(environment: str) -> dict[str, Policy]:
    with as_file(_data_directory() / environment) as directory:
        return load_policies(directory / "policy_*.safetensors")


def read_truth(environment: str, *, actions: str = "mean", kind: str = "discounted") -> dict[str, float]:
    """True return of every target policy: actions 'mean' or 'sampled', 'discounted' or 'undiscounted'."""
    policies = read_facts(environment)["policies"]
    return {name: facts[f"{actions}_actions"][kind]["value"] for name, facts in policies.items()}


def load_logging_policy(environment: str, name: str) -> Policy:
    with as_file(_data_directory() / environment / f"{name}.safetensors") as path:
        return load_policy(path)


def _data_directory() -> Any:
    return files("vlbm.suites") / "data"


def _split_name(name: str) -> tuple[str, str]:
    environment, _, dataset = name.partition("-")
    if environment not in ENVIRONMENTS or dataset not in DATASETS:
        raise InputError(
            f"unknown task '{name}'; the gym suite has {', '.join(ENVIRONMENTS)}, each with "
            f"{', '.join(f'-{dataset}' for dataset in DATASETS)}"
        )
    return environment, dataset


def _derive_seed(name: str, seed: int, number: int) -> int:
    """Another seed for every data set and policy, so that no two share their initial states."""
    letters = int.from_bytes(name.encode(), "big") % 2**32
    return int(np.random.SeedSequence([seed, number, letters]).generate_state(1)[0])


def _make_recipe(name: str, steps: int, seed: int) -> dict[str, Any]:
    """All that the data depend on: policies, simulator, size and seed."""
    environment, dataset = _split_name(name)
    facts = read_facts(environment)
    sums = {}
    with as_file(_data_directory() / environment) as directory:
        for part in recipe_parts(facts, dataset):
            sums[part.policy] = checksum(directory / f"{part.policy}.safetensors")[:16]
    return {
        "name": name,
        "steps": steps,
        "seed": seed,
        "policies": sums,
        "gymnasium": _package_version("gymnasium"),
        "mujoco": _package_version("mujoco"),
    }


def _package_version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"


def check_simulator() -> None:
    """Say which extra is missing before anything else is done."""
    require("gymnasium", extra="gym", purpose="making data")
    require("mujoco", extra="gym", purpose="making data")
