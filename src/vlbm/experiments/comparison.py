"""Comparison: estimates of the same policies by several methods, side by side."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from vlbm.errors import InputError
from vlbm.estimand import Estimand
from vlbm.experiments.evidence.collect import Evidence
from vlbm.experiments.evidence.logged import LoggedSummary
from vlbm.results.backtest import Backtest
from vlbm.results.behaviour import BehaviourRow
from vlbm.results.estimate import Estimate
from vlbm.results.estimates import Estimates, pool_seeds
from vlbm.results.metrics import absolute_error, rank_correlation, regret
from vlbm.storage import write_text
from vlbm.version import VERSION


@dataclass(frozen=True)
class Score:
    """Metrics of one set of estimates against the truth."""

    rank_correlation: float  # NaN for a single policy
    regret: float  # share of the true range
    absolute_error: float

    def to_json(self) -> dict[str, float | None]:
        """NaN becomes null, which JSON has."""
        return {name: None if math.isnan(value) else value for name, value in vars(self).items()}


@dataclass(frozen=True, eq=False)
class Comparison:
    """Estimates of the same policies by several methods, once for every seed."""

    policies: tuple[str, ...]
    estimand: Estimand  # the requested one, which the truth is of
    estimates: Mapping[str, tuple[Estimates, ...]]  # by method
    failures: Mapping[str, str]  # methods that could not be used, and why
    truth: Mapping[str, float] | None = None
    task: str | None = None
    logged: LoggedSummary | None = None  # for the page
    evidence: Mapping[str, Evidence] = field(default_factory=dict)  # diagnostics by method, of the first seed
    command: str | None = None  # the command line that made it

    def matches_estimand(self, method: str) -> bool:
        """Whether a method estimates the requested estimand."""
        return all(found.estimand == self.estimand for found in self.estimates[method])

    def label(self, method: str) -> str:
        """The name of a method in tables, with how its estimand differs from the requested one."""
        if self.matches_estimand(method):
            return method
        return f"{method} ({self.estimates[method][0].estimand.describe_difference(self.estimand)})"

    @property
    def behaviour(self) -> BehaviourRow | None:
        """What the log itself earned; the same for all methods."""
        found = (estimates.behaviour for runs in self.estimates.values() for estimates in runs)
        return next((row for row in found if row is not None), None)

    @property
    def backtest(self) -> dict[str, Backtest]:
        """How far off methods were for the policy that logged the data, by method."""
        tested = {method: found[0].backtest for method, found in self.estimates.items()}
        return {method: backtest for method, backtest in tested.items() if backtest is not None}

    def excluded(self, method: str) -> Mapping[str, str]:
        """Policies that a method gives no value, and why."""
        return self.estimates[method][0].excluded

    def rows(self, method: str, policy: str) -> list[Estimate]:
        """The estimates of a policy, one for every seed; none if the method gives it no value."""
        return [row for estimates in self.estimates[method] for row in estimates if row.policy == policy]

    def values(self, method: str) -> Float[np.ndarray, " policies"]:
        """Values averaged over seeds; NaN where the method gives a policy none."""
        rows = (self.rows(method, policy) for policy in self.policies)
        return np.array([np.mean([row.value for row in found]) if found else np.nan for found in rows])

    def pool_seeds(self, method: str) -> Estimates:
        """The estimates of all seeds, pooled."""
        return pool_seeds(self.estimates[method])

    def agreement(self) -> Float[np.ndarray, "methods methods"]:
        """Rank correlation between every two methods, over the policies that both value."""
        columns = [self.values(method) for method in self.estimates]
        return np.array([[_agreement(first, second) for second in columns] for first in columns])

    def scores(self, method: str) -> tuple[Score, ...]:
        """One for every seed; none if the truth is of another estimand."""
        if self.truth is None:
            raise InputError("there are no true returns to score by")
        if not self.matches_estimand(method):
            return ()
        return tuple(_score(estimates, self.truth) for estimates in self.estimates[method])

    def seconds(self, method: str) -> float:
        """Mean wall-clock time of one seed."""
        found = (estimates.seconds for estimates in self.estimates[method])
        return float(np.mean([times.get("fit", 0.0) + times.get("evaluate", 0.0) for times in found]))

    def to_json(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "task": self.task,
            "estimand": self.estimand.to_json(),
            "policies": list(self.policies),
            "behaviour": None if self.behaviour is None else asdict(self.behaviour),
            "backtest": {method: asdict(found) for method, found in self.backtest.items()},
            "truth": None if self.truth is None else dict(self.truth),
            "methods": {
                method: {
                    "estimand": found[0].estimand.to_json(),
                    "estimates": [estimates.to_json() for estimates in found],
                    "seconds": self.seconds(method),
                    **(
                        {}
                        if self.truth is None
                        else {"scores": [score.to_json() for score in self.scores(method)] or None}
                    ),
                }
                for method, found in self.estimates.items()
            },
            "agreement": {
                method: {
                    other: float(found) if np.isfinite(found) else None
                    for other, found in zip(self.estimates, row, strict=True)
                }
                for method, row in zip(self.estimates, self.agreement(), strict=True)
            },
            "failures": dict(self.failures),
        }

    def save_json(self, path: str | Path) -> None:
        write_text(Path(path), json.dumps(self.to_json(), indent=2) + "\n")

    def report(self, path: str | Path) -> None:
        """Write one self-contained HTML page."""
        from vlbm.report.page import write_page

        write_page(self, Path(path))

    def __str__(self) -> str:
        from vlbm.report.comparisons import as_text

        return as_text(self)

    def __repr__(self) -> str:
        return f"Comparison({len(self.policies)} policies, methods {', '.join(self.estimates) or 'none'})"

    def _repr_html_(self) -> str:
        """The tables for notebooks."""
        return f"<pre>{html.escape(str(self))}</pre>"


def single_comparison(
    estimates: Estimates,
    *,
    truth: Mapping[str, float] | None = None,
    evidence: Evidence | None = None,
    **rest: Any,
) -> Comparison:
    """The estimates of one method as a comparison; its estimand counts as the requested one."""
    return Comparison(
        policies=(*(row.policy for row in estimates), *estimates.excluded),
        estimand=estimates.estimand,
        estimates={estimates.method: (estimates,)},
        failures={},
        truth=truth,
        evidence={} if evidence is None else {estimates.method: evidence},
        **rest,
    )


def _agreement(first: Float[np.ndarray, " policies"], second: Float[np.ndarray, " policies"]) -> float:
    """NaN where fewer than two policies have both values; 0 for a method with equal values for all."""
    both = np.isfinite(first) & np.isfinite(second)
    if both.sum() < 2:
        return float("nan")
    return float(np.nan_to_num(rank_correlation(first[both], second[both]), nan=0.0))


def _score(estimates: Estimates, truth: Mapping[str, float]) -> Score:
    """Against the truth of the policies that have a value."""
    true = np.array([truth[row.policy] for row in estimates])
    ordered = len(true) > 1
    return Score(
        rank_correlation(estimates.values, true) if ordered else float("nan"),
        regret(estimates.values, true) if ordered else 0.0,
        absolute_error(estimates.values, true),
    )
