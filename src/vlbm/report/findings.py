"""Findings: what all sections of a page share, computed once from a comparison."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from vlbm.experiments.comparison import Comparison
from vlbm.experiments.evidence.collect import Evidence
from vlbm.experiments.evidence.recorder import PolicyEvidence
from vlbm.report.numbers import Formatter, format_confidence, make_formatter
from vlbm.results.diagnostics.probabilities import (
    implied_standard_errors,
    probability_above,
    probability_best,
)
from vlbm.results.diagnostics.trust import Diagnostics, Verdict, assess_trust
from vlbm.results.estimate import Estimate, Estimates


@dataclass(frozen=True, eq=False)
class Findings:
    """The page is about the first method with the requested estimand, or the first of all if none has it.

    If this method has no roll-outs, those of another method are shown.
    """

    comparison: Comparison
    method: str
    estimates: Estimates
    order: tuple[int, ...]  # best first
    best: Float[np.ndarray, " policies"]  # probability of being best
    above: Float[np.ndarray, " policies"] | None  # probability of exceeding the behaviour policy
    verdicts: tuple[Verdict, ...]
    rollout_method: str | None
    write: Formatter  # for returns

    @property
    def evidence(self) -> Evidence | None:
        return None if self.rollout_method is None else self.comparison.evidence[self.rollout_method]

    @property
    def truth(self) -> Mapping[str, float] | None:
        """Known true values, if they are of the estimand of this method."""
        return self.comparison.truth if self.comparison.matches_estimand(self.method) else None

    @property
    def interval(self) -> str:
        return f"{format_confidence(self.estimates.confidence)} interval"

    @property
    def ranked(self) -> list[Estimate]:
        return [self.estimates[index] for index in self.order]

    def imagined(self, policy: str) -> PolicyEvidence | None:
        return None if self.evidence is None else self.evidence.policies.get(policy)

    def bounds(self) -> tuple[float, float]:
        """The range of all intervals and true values."""
        values = [bound for row in self.estimates for bound in (row.lower, row.upper)]
        values += [] if self.truth is None else list(self.truth.values())
        return min(values), max(values)


def make_findings(comparison: Comparison) -> Findings:
    """Compute probabilities, verdicts and the order of the policies."""
    matching = [name for name in comparison.estimates if comparison.matches_estimand(name)]
    method = next(iter(matching or comparison.estimates))
    estimates = comparison.pool_seeds(method)
    spread = implied_standard_errors(estimates)
    logged = comparison.logged
    rollout_methods = [name for name, evidence in comparison.evidence.items() if evidence.policies]
    rollout_method = method if method in rollout_methods else next(iter(rollout_methods), None)
    above = None
    # Truncated returns are not comparable to returns without a time limit.
    comparable = logged is not None and not (estimates.estimand.infinite_horizon and logged.truncated)
    if logged is not None and comparable:
        above = probability_above(estimates.values, spread, value=logged.mean, error=logged.standard_error)

    def verdict(row: Estimate) -> Verdict:
        seen = (
            None if rollout_method is None else comparison.evidence[rollout_method].policies.get(row.policy)
        )
        own = seen if rollout_method == method else None
        return assess_trust(
            row,
            Diagnostics(
                candidates=estimates.values,
                logged_returns=logged.returns if logged is not None and comparable else None,
                logged_terminated=None if logged is None else logged.terminated,
                outside=None if seen is None else seen.outside_share,
                terminated=None if own is None else own.terminated,
                model_values=None if own is None else own.model_values,
            ),
        )

    all_bounds = [bound for row in estimates for bound in (row.lower, row.upper)]
    if comparison.truth is not None and comparison.matches_estimand(method):
        all_bounds += comparison.truth.values()
    return Findings(
        comparison=comparison,
        method=method,
        estimates=estimates,
        order=tuple(np.argsort(-estimates.values, kind="stable").tolist()),
        best=probability_best(estimates.values, spread),
        above=above,
        verdicts=tuple(verdict(row) for row in estimates),
        rollout_method=rollout_method,
        write=make_formatter(all_bounds),
    )
