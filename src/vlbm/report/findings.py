"""Findings: what pages and consoles share, computed once from a comparison."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from vlbm.experiments.comparison import Comparison
from vlbm.experiments.evidence.collect import Evidence
from vlbm.experiments.evidence.recorder import PolicyEvidence
from vlbm.report.numbers import Formatter, format_confidence, make_formatter
from vlbm.results.backtest import Backtest
from vlbm.results.behaviour import BehaviourRow
from vlbm.results.diagnostics.agreement import APART, LevelGap, find_level_gaps
from vlbm.results.diagnostics.choice import Choice, choose_method
from vlbm.results.diagnostics.probabilities import (
    implied_standard_errors,
    pairwise_probabilities,
    probability_above,
    probability_best,
)
from vlbm.results.diagnostics.trust import MOSTLY_OUTSIDE, Verdict
from vlbm.results.diagnostics.verdicts import find_outside, judge_methods
from vlbm.results.estimate import Estimate
from vlbm.results.estimates import Estimates


@dataclass(frozen=True, eq=False)
class Findings:
    """The page is about the method to believe, of those with the requested estimand if there are any.

    If this method has no roll-outs, those of another method are shown.
    """

    comparison: Comparison
    runs: Mapping[str, Estimates]  # of every method, seeds pooled
    choice: Choice
    estimates: Estimates  # of the method to believe
    order: tuple[int, ...]  # best first
    best: Float[np.ndarray, " policies"]  # probability of being best
    pairs: Float[np.ndarray, "policies policies"]  # probability of being worth more than another
    above: Float[np.ndarray, " policies"] | None  # probability of exceeding the behaviour policy
    verdicts_by_method: Mapping[str, Mapping[str, Verdict]]  # by method and policy
    rollout_method: str | None
    write: Formatter  # for returns

    @property
    def method(self) -> str:
        return self.choice.method

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """In the order of the estimates."""
        return tuple(self.verdicts_by_method[self.method][row.policy] for row in self.estimates)

    @property
    def evidence(self) -> Evidence | None:
        return None if self.rollout_method is None else self.comparison.evidence[self.rollout_method]

    @property
    def truth(self) -> Mapping[str, float] | None:
        """Known true values, if they are of the estimand of this method."""
        return self.comparison.truth if self.comparison.matches_estimand(self.method) else None

    @property
    def behaviour(self) -> BehaviourRow | None:
        """What logged episodes earned on average, with its interval."""
        return self.comparison.behaviour

    @property
    def backtests(self) -> Mapping[str, Backtest]:
        """How far methods were off on held-out logged episodes."""
        return self.comparison.backtest

    @property
    def interval(self) -> str:
        return f"{format_confidence(self.estimates.confidence)} interval"

    @property
    def ranked(self) -> list[Estimate]:
        return [self.estimates[index] for index in self.order]

    @property
    def level_gaps(self) -> tuple[LevelGap, ...]:
        """Methods with the same estimand whose values are far from those of the page, the farthest first."""
        comparison = self.comparison
        same = {
            name: comparison.values(name)
            for name, run in self.runs.items()
            if run.estimand == self.estimates.estimand
        }
        return tuple(gap for gap in find_level_gaps(self.method, same) if gap.share >= APART)

    def imagined(self, policy: str) -> PolicyEvidence | None:
        return None if self.evidence is None else self.evidence.policies.get(policy)

    def count_outside(self) -> int:
        """The number of policies that are outside the log most of the time."""
        outside = find_outside(self.runs)
        return sum(outside.get(row.policy, 0.0) >= MOSTLY_OUTSIDE for row in self.estimates)

    def bounds(self) -> tuple[float, float]:
        """The range of all intervals, true values and the logged return."""
        values = [bound for row in self.estimates for bound in (row.lower, row.upper)]
        values += [] if self.truth is None else list(self.truth.values())
        values += [] if self.behaviour is None else [self.behaviour.lower, self.behaviour.upper]
        return min(values), max(values)


def make_findings(comparison: Comparison) -> Findings:
    """Choose the method to believe; compute its probabilities and the order of the policies."""
    runs = {name: comparison.pool_seeds(name) for name in comparison.estimates}
    verdicts = judge_methods(runs)
    candidates = [name for name in runs if comparison.matches_estimand(name)] or list(runs)
    errors = {name: test.error_share for name, test in comparison.backtest.items()}
    choice = choose_method({name: verdicts[name] for name in candidates}, errors=errors)
    method = choice.method
    estimates = runs[method]
    spread = implied_standard_errors(estimates)
    logged = comparison.logged
    rollout_methods = [name for name, evidence in comparison.evidence.items() if evidence.policies]
    above = None
    # Truncated returns are not comparable to returns without a time limit.
    if logged is not None and not (estimates.estimand.infinite_horizon and logged.truncated):
        behaviour = {"value": logged.mean, "error": logged.standard_error}
        above = probability_above(estimates.values, spread, **behaviour, bounds=estimates.feasible)
    numbers = [bound for row in estimates for bound in (row.lower, row.upper)]
    if comparison.truth is not None and comparison.matches_estimand(method):
        numbers += comparison.truth.values()
    return Findings(
        comparison=comparison,
        runs=runs,
        choice=choice,
        estimates=estimates,
        order=tuple(np.argsort(-estimates.values, kind="stable").tolist()),
        best=probability_best(estimates.values, spread, bounds=estimates.feasible),
        pairs=pairwise_probabilities(estimates.values, spread, bounds=estimates.feasible),
        above=above,
        verdicts_by_method=verdicts,
        rollout_method=method if method in rollout_methods else next(iter(rollout_methods), None),
        write=make_formatter(numbers),
    )
