"""Saved runs: all that the page needs, without the data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from vlbm.errors import InputError
from vlbm.estimand import Estimand
from vlbm.experiments.comparison import Comparison
from vlbm.experiments.evidence.store import load_evidence, save_evidence
from vlbm.results.estimate import Estimates
from vlbm.storage import write_text
from vlbm.version import VERSION

FOLDER = "evidence"
RUN_FILE = "run.json"


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
    if not path.is_file():
        raise InputError(
            f"{directory}: holds no saved run ({FOLDER}/{RUN_FILE} is missing); make one with "
            "vlbm evaluate ... --save DIR or vlbm compare ... --save DIR"
        )
    try:
        information = json.loads(path.read_text(encoding="utf-8"))
        methods = {
            method: tuple(Estimates.load(place / name) for name in names)
            for method, names in information["methods"].items()
        }
        return Comparison(
            policies=tuple(information["policies"]),
            estimand=Estimand.from_json(information["estimand"]),
            estimates=methods,
            failures=information["failures"],
            truth=information["truth"],
            task=information["task"],
            logged=load_evidence(place / "logged.safetensors") if information["logged"] else None,
            evidence={
                method: load_evidence(place / f"{method}.safetensors") for method in information["evidence"]
            },
            command=information["command"],
        )
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path}: cannot be read ({error}); run evaluate or compare with --save again"
        ) from None
