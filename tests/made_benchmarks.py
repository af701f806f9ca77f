"""Made-up benchmarks, so that tables, figures and pages can be tested without running one."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from vlbm.estimand import Estimand
from vlbm.experiments.published import read_published
from vlbm.experiments.rows import Latents, Row, Value, write_row

ESTIMAND = Estimand(0.995, 1000, "mean")
POLICIES = tuple(f"policy_{number:02d}" for number in range(11))


def made_row(
    task: str = "pendulum",
    method: str = "vlbm",
    seed: int = 0,
    *,
    rank: float = 0.5,
    regret: float = 0.25,
    dope_regret: float = 0.125,
    error: float = 40.0,
    **changes: object,
) -> Row:
    """A row with these scores; its three policies have the true returns 10, 20 and 30."""
    truth = {"tortoise": 10.0, "hare": 20.0, "snail": 30.0}
    row = Row(
        task=task,
        suite="dope" if task.startswith("dope/") else "gym" if "-" in task else "embedded",
        environment=task.rpartition("/")[2].partition("-")[0],
        method=method,
        preset="default",
        settings={},
        seed=seed,
        version="0.1.0",
        data={"checksum": "0123456789abcdef", "episodes": 200, "steps": 40_000},
        estimand=ESTIMAND,
        seconds={"fit": 60.0 + seed, "evaluate": 3.0},
        peak_memory=2_000_000_000,
        policies={name: Value(true + 1 + seed, 0.5, true, true + 2) for name, true in truth.items()},
        truth=truth,
        scores={
            "rank_correlation": rank,
            "regret": regret,
            "dope_regret": dope_regret,
            "absolute_error": error,
        },
    )
    return replace(row, **changes)


def made_failure(task: str, method: str, seed: int, reason: str) -> Row:
    nothing = {"policies": {}, "scores": None, "seconds": {"fit": math.nan, "evaluate": math.nan}}
    return made_row(task, method, seed, failed=reason, peak_memory=None, **nothing)


def write_rows(directory: Path, rows: Iterable[Row]) -> Path:
    for row in rows:
        write_row(directory, row)
    return directory


def made_paper(directory: Path, *, seeds: int = 3, latents: int = 0) -> Path:
    """The paper's published numbers as if they were results of ours, with estimates to match."""
    random = np.random.default_rng(0)
    published = read_published()
    for task, method in dict.fromkeys((task, method) for _, task, method in published):
        scale = 3000.0 if task.startswith(HANDS) else 900.0
        true = np.sort(random.uniform(0.05, 1.0, len(POLICIES))) * scale
        for seed in range(seeds):
            scores = {}
            for metric in ("rank_correlation", "dope_regret", "absolute_error"):
                found = published.get((metric, task, method))
                value = math.nan if found is None else found.mean + found.deviation * (seed - 1)
                scores[metric] = float(np.clip(value, -1, 1)) if metric == "rank_correlation" else value
            scores["regret"] = scores["dope_regret"] * 1.1
            skill = 0.5 if math.isnan(scores["rank_correlation"]) else max(scores["rank_correlation"], 0.0)
            guessed = (
                skill * true
                + (1 - skill) * random.uniform(0, 1, len(true)) * scale
                + random.normal(size=len(true)) * scale * 0.03
            )
            family = method == "vlbm"
            weights = np.round(random.dirichlet(np.full(10, 0.08)), 8) if family else None
            row = made_row(
                task,
                method,
                seed,
                policies={
                    name: Value(float(value), 20.0, float(value) - 40, float(value) + 40)
                    for name, value in zip(POLICIES, guessed, strict=True)
                },
                truth=dict(zip(POLICIES, map(float, true), strict=True)),
                scores=scores,
                branch_weights=None if weights is None else (tuple(map(float, weights)),),
            )
            shown = method in ("vlbm", "vlm", "vlm-rsa-mse") and task in TASKS_WITH_LATENTS
            spread = {"vlbm": 6.0, "vlm": 2.0, "vlm-rsa-mse": 0.3}.get(method, 1.0)
            write_row(
                directory,
                row,
                made_latents(random, latents, spread) if latents and shown and seed == 0 else None,
            )
    return directory


HANDS = ("dope/door", "dope/pen", "dope/hammer", "dope/relocate")
TASKS_WITH_LATENTS = (
    "dope/ant-expert",
    "dope/halfcheetah-medium",
    "dope/walker2d-medium-expert",
    "dope/hopper-medium-expert",
)


def made_latents(random: np.random.Generator, steps: int, spread: float) -> Latents:
    """A cloud for every policy; clouds overlap where the spread between them is small."""
    centres = random.normal(size=(len(POLICIES), 16)) * spread / 3
    owner = np.arange(steps) % len(POLICIES)
    latent = centres[owner] + random.normal(size=(steps, 16))
    return Latents(latent.astype(np.float32), owner, owner.astype(np.float32))
