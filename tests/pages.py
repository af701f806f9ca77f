"""Hand-made comparisons with all evidence, so that pages can be tested without training anything."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vlbm.estimand import Estimand
from vlbm.experiments.comparison import Comparison
from vlbm.experiments.evidence.collect import Evidence, ModelEvidence
from vlbm.experiments.evidence.latents import LOGGED, LatentMap
from vlbm.experiments.evidence.logged import LoggedSummary
from vlbm.experiments.evidence.recorder import PolicyEvidence
from vlbm.experiments.evidence.trajectories import time_points
from vlbm.results.diagnostics.calibration import LEVELS, Calibration
from vlbm.results.diagnostics.trust import OUTSIDE
from vlbm.results.estimate import Estimate
from vlbm.results.estimates import Estimates
from vlbm.results.logged_returns import LoggedReturns

NAMES = ("tortoise", "hare", "snail")
ASKED = Estimand(0.99, 1000, "mean")


def made_estimates(
    names: Sequence[str] = NAMES,
    *,
    method: str = "vlbm",
    seed: int = 0,
    shift: float = 0.0,
    weighed: bool = False,
    estimand: Estimand = ASKED,
) -> Estimates:
    """Values 10, 20, 30, ... in the order of the names, each with an interval of 4 either way."""
    random = np.random.default_rng(seed)
    shares, rows = shares_outside(len(names)), []
    for index, name in enumerate(names):
        returns = 10.0 * (index + 1) + shift + random.normal(size=50)
        value = 10.0 * (index + 1) + shift
        details = {"effective_sample_size": 12.0 + index} if weighed else {OUTSIDE: shares[index]}
        models = () if weighed else (value, 1.05 * value, 1.1 * value)
        rows.append(
            Estimate(
                name,
                value,
                2.0,
                value - 4,
                value + 4,
                returns,
                100.0,
                details=details,
                model_values=models,
                terminated=None if weighed else 0.1,
            )
        )
    data = {"path": "logs.npz", "episodes": 20, "steps": 2000}
    return Estimates(
        tuple(rows),
        method,
        seed,
        estimand,
        {"branches": 3, "horizon": 1000},
        data,
        {"fit": 3.0, "evaluate": 1.0},
        logged=LoggedReturns(3.0, 27.0, 0.25),
    )


def shares_outside(policies: int) -> list[float]:
    """The first policy stays inside the log, the last one leaves it most of the time."""
    return np.linspace(0.0, 0.9, policies).tolist()


def made_logged(*, horizon: int = 1000, dimensions: int = 3, warnings: tuple[str, ...] = ()) -> LoggedSummary:
    """A log whose mean return is 15 with a standard error of 0.5."""
    times = time_points(horizon)
    random = np.random.default_rng(1)
    return LoggedSummary(
        episodes=20,
        steps=2000,
        fingerprint="0123456789abcdef" * 2,
        observation_size=dimensions,
        action_size=2,
        discrete=False,
        terminated=0.25,
        truncated=0,
        returns=random.normal(15.0, 6.0, size=20),
        mean=15.0,
        standard_error=0.5,
        times=times,
        dimensions=np.arange(dimensions),
        trajectories=made_trajectories(times, dimensions, width=2.0),
        running=np.linspace(1.0, 0.75, len(times)),
        warnings=warnings,
        notes=("log-probabilities are missing",),
    )


def made_trajectories(times: np.ndarray, dimensions: int, *, width: float = 1.0) -> np.ndarray:
    middle = np.sin(times / 40.0)[:, None, None] + np.arange(dimensions)[:, None]
    return (middle + width * np.array([-1.0, 0.0, 1.0])).astype(np.float32)


def made_evidence(
    names: Sequence[str] = NAMES, *, horizon: int = 1000, dimensions: int = 3, points: int = 200
) -> Evidence:
    times = time_points(horizon)
    shares = shares_outside(len(names))
    random = np.random.default_rng(2)
    policies = {
        name: PolicyEvidence(
            model_values=np.array([10.0, 10.5, 11.0]) * (index + 1),
            terminated=0.1,
            running=np.linspace(1.0, 0.9, len(times)),
            trajectories=made_trajectories(times, dimensions),
            outside=np.full(len(times), share),
            outside_share=float(share),
        )
        for index, (name, share) in enumerate(zip(names, shares, strict=True))
    }
    entries = tuple(
        {
            "step": float(step),
            "loss": 100.0 / step,
            "kl": 3.0,
            "termination": 0.0,
            "validation": 10.0 / step,
        }
        for step in (250, 500, 750, 1000)
    )
    coverage = np.array([LEVELS, np.array(LEVELS) * 0.8])
    return Evidence(
        times,
        np.arange(dimensions),
        policies,
        ModelEvidence(
            histories=(entries, entries),
            best_steps=(1000, 750),
            branch_weights=(np.array([0.5, 0.3, 0.2]), np.array([0.4, 0.4, 0.2])),
            calibration=Calibration(
                (1, 10), LEVELS, coverage, coverage, np.linspace(0.1, 1, 30), np.linspace(0.2, 2, 30), 64
            ),
            latents=LatentMap(
                "t-SNE",
                random.normal(size=(points, 2)).astype(np.float32),
                np.arange(points) % (len(names) + 1) + LOGGED,
                random.normal(size=points),
            ),
        ),
    )


def made_comparison(
    names: Sequence[str] = NAMES, *, truth: bool = True, methods: int = 2, **sizes: int
) -> Comparison:
    """Two methods that disagree, with the truth one below the first method's values."""
    estimates = {"vlbm": (made_estimates(names),)}
    if methods > 1:
        estimates["wpdis"] = (made_estimates(names, method="wpdis", shift=3.0, weighed=True),)
    true = {name: 10.0 * (index + 1) - 1.0 for index, name in enumerate(names)}
    logged = {key: size for key, size in sizes.items() if key in ("horizon", "dimensions")}
    return Comparison(
        policies=tuple(names),
        estimand=ASKED,
        estimates=estimates,
        failures={"fqe": "needs more steps"} if methods > 1 else {},
        truth=true if truth else None,
        task="meadow" if truth else None,
        logged=made_logged(**logged),
        evidence={"vlbm": made_evidence(names, **sizes)},
        command="vlbm compare meadow --report report.html",
    )
