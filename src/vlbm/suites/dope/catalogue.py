"""What DOPE has: tasks, files, sizes and both kinds of true returns, from the package's own tables."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from vlbm.errors import InputError

PREFIX = "dope/"
Kind = Literal["discounted", "undiscounted"]


@dataclass(frozen=True)
class Truth:
    """True returns of one kind. The two kinds differ in discount and in how actions are taken."""

    kind: Kind
    discount: float
    actions: Literal["mean", "sample"]
    values: Mapping[str, float]  # by policy


@dataclass(frozen=True)
class Remote:
    """A file and where its publisher keeps it."""

    path: str  # below the user's directory: 'hopper/hopper_online_0.pkl', 'data/hopper_medium-v2.hdf5'
    address: str
    also: tuple[str, ...] = ()  # other paths under which users may have it


@dataclass(frozen=True)
class Problem:
    """One of the 32 tasks, as the catalogue has it."""

    name: str
    environment: str
    dataset: str
    family: Literal["gym", "adroit"]
    observations: int
    policy_inputs: int  # more than observations for ant: contact forces, which were always zero
    actions: int
    horizon: int
    steps: int
    simulator: str | None  # Gymnasium's id of the environment whose returns agree with the published
    data: Remote
    policies: Mapping[str, Remote]
    behaviour: tuple[str, ...] | None  # who plays the behaviour in regenerated data; () is uniform noise

    def truth(self, kind: Kind | None = None) -> Truth:
        """The discounted truth where it is published (the Gym tasks), else the undiscounted; or as asked."""
        kind = kind or ("discounted" if self.family == "gym" else "undiscounted")
        if kind not in ("discounted", "undiscounted"):
            raise InputError(f"{self.name}: truth='{kind}' is neither 'discounted' nor 'undiscounted'")
        mine = [row for row in _read_rows() if row["environment"] == self.environment]
        values = {row["name"]: row[f"{kind}_mean"] for row in mine}
        if any(value == "" for value in values.values()):
            raise InputError(
                f"{self.name}: no {kind} returns are published for {self.environment}; "
                "ask for truth='undiscounted', which is of sampled actions"
            )
        discounted = kind == "discounted"
        return Truth(
            kind=kind,
            discount=_read_facts()["discount"] if discounted else 1.0,
            actions="mean" if discounted else "sample",
            values={name: float(value) for name, value in values.items()},
        )


def list_names() -> tuple[str, ...]:
    """The 32 tasks, as the user writes them."""
    return tuple(
        f"{PREFIX}{environment}-{dataset}"
        for environment, facts in _read_facts()["environments"].items()
        for dataset in facts["steps"]
    )


@cache
def find_problem(name: str) -> Problem:
    """The task of that name; 'hopper-medium' is understood as 'dope/hopper-medium'."""
    full, names = name if name.startswith(PREFIX) else PREFIX + name, list_names()
    if full not in names:
        raise InputError(
            f"{name}: is no task of the dope suite; its tasks are {names[0]}, ..., {names[-1]}: "
            "an environment and one of its data sets"
        )
    environment, _, dataset = full.removeprefix(PREFIX).partition("-")
    facts = _read_facts()["environments"][environment]
    policies = {row["name"]: row["file"] for row in _read_rows() if row["environment"] == environment}
    by_number = {int(policy.rpartition("_")[2]): policy for policy in policies}
    numbers = _read_facts()["regeneration"].get(dataset) if facts["family"] == "gym" else None
    return Problem(
        name=full,
        environment=environment,
        dataset=dataset,
        family=facts["family"],
        observations=facts["observations"],
        policy_inputs=facts["policy_inputs"],
        actions=facts["actions"],
        horizon=facts["horizon"],
        steps=facts["steps"][dataset],
        simulator=facts["simulator"],
        data=_make_remote(environment, dataset, facts["family"]),
        policies={
            policy: Remote(file, f"{_read_facts()['addresses']['policies']}/{file}", _alternative_paths(file))
            for policy, file in policies.items()
        },
        behaviour=None if numbers is None else tuple(by_number[number] for number in numbers),
    )


def _make_remote(environment: str, dataset: str, family: str) -> Remote:
    """D4RL's file, and every path below the user's directory where it is looked for."""
    rules = _read_facts()["files"][family]

    def fill(pattern: str) -> str:
        words = {"environment": environment, "dataset": dataset, "dataset_": dataset.replace("-", "_")}
        return pattern.format(**words)

    published = fill(rules["published"])
    known = [published, *(fill(pattern) for pattern in rules["also"])]
    folders = ["", "data/", "datasets/", f"{rules['folder']}/", f"data/{rules['folder']}/"]
    paths = [folder + file for folder in folders for file in known]
    older = rules.get("older")
    if older is not None:
        paths += [folder + fill(older[dataset]) for folder in (*folders, f"{older['folder']}/")]
    ours = f"data/{published}"
    address = f"{_read_facts()['addresses']['data']}/{rules['folder']}/{published}"
    return Remote(ours, address, tuple(path for path in dict.fromkeys(paths) if path != ours))


def _alternative_paths(file: str) -> tuple[str, ...]:
    return (file.rpartition("/")[2], f"d4rl/{file}", f"policies/{file}")


@cache
def _read_facts() -> dict[str, Any]:
    return json.loads(_read_table("catalogue.json"))


@cache
def _read_rows() -> tuple[dict[str, str], ...]:
    rows = csv.DictReader(_read_table("policies.csv").splitlines())
    # A policy is named after its file, as `load_policies` names it.
    return tuple({**row, "name": row["file"].rpartition("/")[2].removesuffix(".pkl")} for row in rows)


def _read_table(name: str) -> str:
    return (files("vlbm.suites") / "data" / "dope" / name).read_text(encoding="utf-8")
