"""Saved runs: all that the page needs, without the data."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vlbm.errors import InputError
from vlbm.estimand import Estimand
from vlbm.experiments.comparison import Comparison
from vlbm.experiments.evidence.collect import Evidence
from vlbm.experiments.evidence.logged import LoggedSummary
from vlbm.experiments.evidence.store import load_evidence, save_evidence
from vlbm.limits import check_claim, check_inside, open_regular
from vlbm.results.estimates import Estimates
from vlbm.schema import check_entries, check_fields, refuse_damage
from vlbm.storage import write_text
from vlbm.version import VERSION

FOLDER = "evidence"
RUN_FILE = "run.json"
MOST_TEXT = 1 << 26  # bytes of the file that names the others
INFORMATION: dict[str, Any] = {
    "policies": tuple[str, ...],
    "estimand": Mapping[str, Any],
    "methods": Mapping[str, tuple[str, ...]],
    "evidence": tuple[str, ...],
    "logged": bool,
    "failures": Mapping[str, str],
    "truth": Mapping[str, float] | None,
    "task": str | None,
    "command": str | None,
}


def save_run(comparison: Comparison, directory: Path) -> None:
    """Estimates of every method and seed, evidence, and a file that names them, in a folder of its own."""
    directory = directory / FOLDER
    methods: dict[str, list[str]] = {}
    for method, found in comparison.estimates.items():
        methods[method] = [f"{method}-{estimates.seed}.safetensors" for estimates in found]
        for name, estimates in zip(methods[method], found, strict=True):
            estimates.save(directory / name, identity={})
    for method, evidence in comparison.evidence.items():
        save_evidence(directory / f"{method}.safetensors", evidence)
    if comparison.logged is not None:
        save_evidence(directory / "logged.safetensors", comparison.logged)
    information: dict[str, Any] = {
        "version": VERSION,
        "policies": list(comparison.policies),
        "estimand": comparison.estimand.to_json(),
        "methods": methods,
        "evidence": list(comparison.evidence),
        "logged": comparison.logged is not None,
        "failures": dict(comparison.failures),
        "truth": None if comparison.truth is None else dict(comparison.truth),
        "task": comparison.task,
        "command": comparison.command,
    }
    # Written last: a run without it is unfinished.
    write_text(directory / RUN_FILE, json.dumps(information, indent=2) + "\n")


def load_run(directory: Path) -> Comparison:
    place = directory / FOLDER
    path = place / RUN_FILE
    if not path.exists():
        raise InputError(
            f"{directory}: holds no saved run ({FOLDER}/{RUN_FILE} is missing); make one with "
            "vlbm evaluate ... --save DIR or vlbm compare ... --save DIR"
        )
    check_inside(place, path)
    with refuse_damage(path, "run evaluate or compare with --save again"):
        with open_regular(path, "r") as file:
            check_claim(path, os.fstat(file.fileno()).st_size, what="what it says", limit=MOST_TEXT)
            information = json.loads(file.read())
        check_entries(information, INFORMATION)
        comparison = Comparison(
            policies=tuple(information["policies"]),
            estimand=Estimand.from_json(information["estimand"]),
            estimates={
                method: tuple(Estimates.load(_find(place, name)) for name in names)
                for method, names in information["methods"].items()
            },
            failures=information["failures"],
            truth=information["truth"],
            task=information["task"],
            logged=(
                load_evidence(_find(place, "logged.safetensors"), LoggedSummary)
                if information["logged"]
                else None
            ),
            evidence={
                method: load_evidence(_find(place, f"{method}.safetensors"), Evidence)
                for method in information["evidence"]
            },
            command=information["command"],
        )
        check_fields(comparison)
        _check_names(comparison)
    return comparison


def _find(place: Path, name: str) -> Path:
    """A file of the run, which lies in its folder whatever names and links say."""
    if not name or Path(name).name != name:
        raise InputError(f"names the file '{name}', which is outside {place}")
    check_inside(place, place / name)
    return place / name


def _check_names(comparison: Comparison) -> None:
    """Refuse estimates, evidence and truth that are of other policies or methods."""
    policies = set(comparison.policies)
    given = {
        *(row.policy for found in comparison.estimates.values() for each in found for row in each.rows),
        *(name for evidence in comparison.evidence.values() for name in evidence.policies),
    }
    if not policies or given - policies:
        raise ValueError(f"its policies are not those of its estimates, such as {sorted(given - policies)}")
    if comparison.truth is not None and policies - comparison.truth.keys():
        raise ValueError("it lacks the truth of some policies")
    if not comparison.estimates or not all(comparison.estimates.values()):
        raise ValueError("a method has no estimates")
    if set(comparison.evidence) - set(comparison.estimates):
        raise ValueError("it has evidence of a method without estimates")
