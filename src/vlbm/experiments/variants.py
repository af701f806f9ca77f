"""Variants: the methods of a benchmark, each with its settings, and the tasks, in the paper's order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from vlbm.experiments.published import SUITE, published_tasks
from vlbm.experiments.rows import Row

# The paper's names and order, with methods that it lacks beside their kin.
NAMES = {
    "is": "IS",
    "wis": "WIS",
    "pdis": "PDIS",
    "wpdis": "WPDIS",
    "vpm": "VPM",
    "dice": "DICE",
    "dualdice": "DualDICE",
    "gendice": "GenDICE",
    "dr": "DR",
    "wdr": "WDR",
    "fqe": "FQE",
    "ff": "FF ensemble",
    "ar": "AR ensemble",
    "vlm": "VLM",
    "vlm-rsa-mse": "VLM+RSA (MSE)",
    "vlm-rsa": "VLM+RSA",
    "vlm-rsa-ensemble": "VLM+RSA ensemble",
    "vlbm": "VLBM",
}
INITIALS = {
    "expert": "E",
    "medium-expert": "M-E",
    "medium": "M",
    "medium-replay": "M-R",
    "random": "R",
}
DATASETS = ("human", "cloned", *INITIALS)
ADROIT = ("door", "pen", "hammer", "relocate")
GYM_MUJOCO = ("ant", "halfcheetah", "walker2d", "hopper")
SPELLINGS = {"halfcheetah": "HalfCheetah"}


@dataclass(frozen=True)
class Variant:
    """A method with its settings; look-alikes of published data count as another variant."""

    method: str
    preset: str
    digest: str
    settings: str  # what was changed, as text
    regenerated: bool

    @classmethod
    def of(cls, row: Row) -> Variant:
        changes = ", ".join(f"{name}={value}" for name, value in sorted(row.settings.items()))
        return cls(row.method, row.preset, row.digest, changes, row.regenerated)

    @property
    def label(self) -> str:
        remarks = [self.preset] if self.preset != "default" else []
        remarks += [self.settings] if self.settings else []
        remarks += ["regenerated data"] if self.regenerated else []
        return name_method(self.method) + (f" [{'; '.join(remarks)}]" if remarks else "")


def name_method(method: str) -> str:
    return NAMES.get(method, method)


def order_methods(methods: Iterable[str]) -> list[str]:
    known = list(NAMES)
    return sorted(set(methods), key=lambda name: (known.index(name) if name in known else len(known), name))


def list_variants(rows: Sequence[Row]) -> list[Variant]:
    """All that there are, in the order of tables."""
    found = {Variant.of(row) for row in rows}
    methods = order_methods(variant.method for variant in found)
    return sorted(
        found,
        key=lambda one: (
            methods.index(one.method),
            one.preset != "default",
            one.preset,
            one.settings,
            one.regenerated,
        ),
    )


def family(row: Row) -> str:
    """The suite whose tasks stand in one table; DOPE's 32 tasks have two."""
    if row.suite != SUITE:
        return row.suite
    return "adroit" if environment_of(row.problem) in ADROIT else "gym-mujoco"


def family_title(name: str) -> str:
    return {"gym-mujoco": "Gym-Mujoco", "adroit": "Adroit"}.get(name, f"{name} suite")


def family_tasks(name: str, rows: Sequence[Row]) -> list[str]:
    """All tasks of the paper's tables, or those of another suite that there are rows of."""
    if name in ("gym-mujoco", "adroit"):
        return [task for task in published_tasks() if (environment_of(task) in ADROIT) == (name == "adroit")]
    return order_tasks({row.problem for row in rows if family(row) == name})


@cache
def environment_of(task: str) -> str:
    return task.rpartition("/")[2].partition("-")[0]


@cache
def dataset_of(task: str) -> str:
    return task.rpartition("/")[2].partition("-")[2]


def environment_title(environment: str) -> str:
    return SPELLINGS.get(environment, environment.capitalize())


def task_title(task: str) -> str:
    """As the paper's tables head their columns: Ant-M-E, Door human."""
    environment, dataset = environment_title(environment_of(task)), dataset_of(task)
    if dataset in INITIALS and environment_of(task) not in ADROIT:
        return f"{environment}-{INITIALS[dataset]}"
    return f"{environment} {dataset}".rstrip()


def order_tasks(tasks: Iterable[str]) -> list[str]:
    """By environment and data set as in the paper; those that it lacks follow by name."""
    environments, datasets = (*GYM_MUJOCO, *ADROIT), list(DATASETS)

    def place(task: str) -> tuple[int, str, int, str]:
        environment, dataset = environment_of(task), dataset_of(task)
        return (
            environments.index(environment) if environment in environments else len(environments),
            environment,
            datasets.index(dataset) if dataset in datasets else len(datasets),
            task,
        )

    return sorted(set(tasks), key=place)
