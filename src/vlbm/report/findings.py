"""Findings: what all parts of a page share, worked out once from a comparison."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from vlbm.experiments.comparison import Comparison
from vlbm.experiments.evidence.gathering import Evidence
from vlbm.experiments.evidence.imagined import PolicyEvidence
from vlbm.report.numbers import Formatter, alike, confidence
from vlbm.results.diagnostics.probabilities import probability_above, probability_best, spreads
from vlbm.results.diagnostics.trust import Circumstances, Verdict, judge
from vlbm.results.estimate import Estimate, Estimates


@dataclass(frozen=True, eq=False)
class Findings:
    """The first method that estimates what was asked for answers, the first of all if none does.

    If it imagines nothing, what another method imagined is shown.
    """

    comparison: Comparison
    method: str
    estimates: Estimates
    order: tuple[int, ...]  # best first
    best: Float[np.ndarray, " policies"]
    above: Float[np.ndarray, " policies"] | None  # the behaviour policy
    verdicts: tuple[Verdict, ...]
    imaginer: str | None
    write: Formatter  # of returns

    @property
    def evidence(self) -> Evidence | None:
        return None if self.imaginer is None else self.comparison.evidence[self.imaginer]

    @property
    def truth(self) -> Mapping[str, float] | None:
        """Where it is known, and of what is estimated."""
        return self.comparison.truth if self.comparison.answers(self.method) else None

    @property
    def interval(self) -> str:
        """What intervals are called."""
        return f"{confidence(self.estimates.confidence)} interval"

    @property
    def ranked(self) -> list[Estimate]:
        return [self.estimates[index] for index in self.order]

    def imagined(self, policy: str) -> PolicyEvidence | None:
        return None if self.evidence is None else self.evidence.policies.get(policy)

    def bounds(self) -> tuple[float, float]:
        """From the lowest to the highest end of all intervals, and the truth."""
        values = [bound for row in self.estimates for bound in (row.lower, row.upper)]
        values += [] if self.truth is None else list(self.truth.values())
        return min(values), max(values)


def find(comparison: Comparison) -> Findings:
    """Probabilities, verdicts and the order of the policies."""
    answering = [name for name in comparison.estimates if comparison.answers(name)]
    method = next(iter(answering or comparison.estimates))
    estimates = comparison.pooled(method)
    spread = spreads(estimates)
    logged = comparison.logged
    imaginers = [name for name, evidence in comparison.evidence.items() if evidence.policies]
    imaginer = method if method in imaginers else next(iter(imaginers), None)
    above = None
    # Returns that were cut off say nothing about those without a time limit.
    comparable = logged is not None and not (estimates.estimand.endless and logged.cut)
    if logged is not None and comparable:
        above = probability_above(estimates.values, spread, value=logged.mean, error=logged.standard_error)

    def verdict(row: Estimate) -> Verdict:
        seen = None if imaginer is None else comparison.evidence[imaginer].policies.get(row.policy)
        own = seen if imaginer == method else None
        return judge(
            row,
            Circumstances(
                candidates=estimates.values,
                logged_returns=logged.returns if logged is not None and comparable else None,
                logged_ended=None if logged is None else logged.ended,
                outside=None if seen is None else seen.outside_share,
                ended=None if own is None else own.ended,
                model_values=None if own is None else own.model_values,
            ),
        )

    every = [bound for row in estimates for bound in (row.lower, row.upper)]
    if comparison.truth is not None and comparison.answers(method):
        every += comparison.truth.values()
    return Findings(
        comparison=comparison,
        method=method,
        estimates=estimates,
        order=tuple(np.argsort(-estimates.values, kind="stable").tolist()),
        best=probability_best(estimates.values, spread),
        above=above,
        verdicts=tuple(verdict(row) for row in estimates),
        imaginer=imaginer,
        write=alike(every),
    )
