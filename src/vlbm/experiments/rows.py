"""Row: what one method, with one seed, says of one task; a benchmark is a directory of them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from vlbm.errors import InputError
from vlbm.estimand import Estimand
from vlbm.experiments.fields import Fields, replace_nan
from vlbm.storage import load_arrays, save_arrays, write_text

FOLDER = "rows"
SCORES = ("rank_correlation", "regret", "dope_regret", "absolute_error")
REGENERATED = " (regenerated)"  # how a task's name ends whose data only look like the published ones


@dataclass(frozen=True)
class Value:
    """What a method says of one policy; NaN where it cannot say how sure it is."""

    value: float
    standard_error: float
    lower: float
    upper: float


@dataclass(frozen=True)
class Row:
    """One cell of a benchmark, with what it takes to reproduce it; a failed one has no policies."""

    task: str
    suite: str
    environment: str
    method: str
    preset: str
    settings: Mapping[str, Any]  # those that differ from the preset's
    seed: int
    version: str
    data: Mapping[str, Any]  # checksum, episodes, steps
    estimand: Estimand
    seconds: Mapping[str, float]  # fit, evaluate; NaN where it failed before
    peak_memory: int | None  # bytes
    policies: Mapping[str, Value]
    truth: Mapping[str, float] | None = None
    scores: Mapping[str, float] | None = None  # NaN where a metric has no value
    branch_weights: tuple[tuple[float, ...], ...] | None = None  # of every model
    failed: str | None = None  # why there are no estimates

    @property
    def digest(self) -> str:
        """Tells settings apart in file names."""
        return digest_settings(self.settings)

    @property
    def regenerated(self) -> bool:
        return self.task.endswith(REGENERATED)

    @property
    def problem(self) -> str:
        """The task without a word on where its data come from."""
        return self.task.removesuffix(REGENERATED)

    def to_json(self) -> dict[str, Any]:
        return replace_nan(
            {
                **vars(self),
                "estimand": self.estimand.to_json(),
                "policies": {name: vars(found) for name, found in self.policies.items()},
            }
        )

    @classmethod
    def from_json(cls, values: Any, path: str | Path) -> Row:
        """A row as it was stored in `path`, every field checked."""
        fields = Fields(values, str(path))
        failed = fields.text("failed", optional=True)
        data, seconds = fields.inner("data"), fields.inner("seconds")
        row = cls(
            **{name: fields.text(name) for name in ("task", "suite", "environment", "method", "preset")},
            settings=fields.inner("settings").values,
            seed=fields.whole("seed"),
            version=fields.text("version"),
            data={
                "checksum": data.text("checksum"),
                "episodes": data.whole("episodes"),
                "steps": data.whole("steps"),
            },
            estimand=_read_estimand(fields.inner("estimand")),
            seconds={name: seconds.number_or_nan(name) for name in ("fit", "evaluate")},
            peak_memory=fields.whole("peak_memory") if fields.has("peak_memory") else None,
            policies={
                name: Value(
                    found.number("value"),
                    *(found.number_or_nan(part) for part in ("standard_error", "lower", "upper")),
                )
                for name, found in fields.inner("policies").objects()
            },
            truth=fields.inner("truth").numbers() if fields.has("truth") else None,
            scores={name: fields.inner("scores").number_or_nan(name) for name in SCORES}
            if fields.has("scores")
            else None,
            branch_weights=fields.number_lists("branch_weights") if fields.has("branch_weights") else None,
            failed=failed,
        )
        if failed is None and not row.policies:
            fields.refuse("policies", "is empty, though the row has not failed")
        if row.scores is not None and row.truth is None:
            fields.refuse("truth", "is missing, though there are scores")
        if row.truth is not None and not row.policies.keys() <= row.truth.keys():
            unknown = ", ".join(sorted(row.policies.keys() - row.truth.keys()))
            fields.refuse("truth", f"lacks {unknown}")
        return row


@dataclass(frozen=True, eq=False)
class Latents:
    """Latents of steps that policies made, for pictures of the latent space."""

    latent: Float[np.ndarray, "steps latents"]
    owner: Int[np.ndarray, " steps"]  # which of the row's policies, in their order
    returns: Float[np.ndarray, " steps"]  # of the episode that the step is from


def digest_settings(settings: Mapping[str, Any]) -> str:
    text = json.dumps(dict(settings), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def row_path(directory: Path, row: Row) -> Path:
    return locate_row(directory, row.task, row.method, row.preset, row.settings, row.seed)


def locate_row(
    directory: Path, task: str, method: str, preset: str, settings: Mapping[str, Any], seed: int
) -> Path:
    """Where a row is stored: a folder for every task, with a name that all file systems take."""
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", task.replace("/", "--")).strip("-.")
    return directory / FOLDER / slug / f"{method}-{preset}-{digest_settings(settings)}-{seed}.json"


def write_row(directory: Path, row: Row, latents: Latents | None = None) -> Path:
    """Store a row, and its latents beside it; the row comes last, so that it is never without them."""
    path = row_path(directory, row)
    if latents is not None:
        arrays = {"latent": latents.latent, "owner": latents.owner, "return": latents.returns}
        save_arrays(path.with_suffix(".safetensors"), arrays, information={"task": row.task})
    write_text(path, json.dumps(row.to_json(), indent=1, allow_nan=False) + "\n")
    return path


def read_rows(directory: Path) -> list[Row]:
    """All rows of a benchmark, sorted by path; an error if there are none or one is damaged."""
    # Hidden files are what a killed process had not finished.
    paths = [path for path in sorted((directory / FOLDER).glob("*/*.json")) if path.name[0] != "."]
    if not paths:
        raise InputError(
            f"{directory}: holds no benchmark ({FOLDER}/TASK/*.json are missing); "
            "give the directory of vlbm benchmark run"
        )
    return [read_row(directory, path) for path in paths]


def read_row(directory: Path, path: Path) -> Row:
    """One row of a benchmark; an error if it is damaged or belongs elsewhere."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path}: is not JSON ({error}); delete it and run its cell again") from None
    row = Row.from_json(values, path)
    if (own := row_path(directory, row)) != path:
        raise InputError(f"{path}: its contents belong into {own}; move or delete it")
    return row


def read_latents(directory: Path, row: Row) -> Latents | None:
    """The latents of a row, if they were stored."""
    path = row_path(directory, row).with_suffix(".safetensors")
    if not path.is_file():
        return None
    arrays = load_arrays(path)
    for name in ("latent", "owner", "return"):
        if name not in arrays:
            raise InputError(f"{path}: tensor '{name}' is missing; delete the file and run its cell again")
    found = Latents(arrays["latent"], arrays["owner"], arrays["return"])
    steps = len(found.latent)
    if found.latent.ndim != 2 or found.owner.shape != (steps,) or found.returns.shape != (steps,):
        raise InputError(f"{path}: 'latent', 'owner' and 'return' must have a row for each step")
    if steps == 0 or not np.isfinite(found.latent).all():
        raise InputError(f"{path}: 'latent' has no steps, or numbers that are not finite")
    if found.owner.min() < 0 or found.owner.max() >= len(row.policies):
        raise InputError(f"{path}: 'owner' names policies that the row does not have")
    return found


def _read_estimand(fields: Fields) -> Estimand:
    horizon = fields.whole("horizon") if fields.has("horizon") else None
    try:
        return Estimand.from_json(
            {
                "discount": fields.number("discount"),
                "horizon": horizon,
                "actions": fields.text("actions"),
            }
        )
    except InputError as error:
        fields.refuse("actions", str(error))
