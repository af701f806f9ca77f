"""add_evidence(): what a page shows beside estimates, collected when it is wanted."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from vlbm.estimators.world_models.evaluator import WorldEvaluator
from vlbm.experiments.evidence.collect import DiagnosticsCollector

if TYPE_CHECKING:
    from vlbm.experiments.comparison import Comparison


def add_evidence(comparison: Comparison) -> Comparison:
    """With the summary of the log, back-tests and the evidence of every method, as far as they can be had.

    Estimates made in this process know their evaluator: worlds imagine the same episodes again, which takes
    as long as evaluating did. Estimates from disk stay as they are.
    """
    origins = {
        method: found[0].origin
        for method, found in comparison.estimates.items()
        if found[0].origin is not None and method not in comparison.evidence
    }
    if not origins:
        return comparison
    logs = [origin.evaluator.log for origin in origins.values() if origin.evaluator.log is not None]
    estimand = comparison.estimand
    collector = DiagnosticsCollector.of(
        logs[0] if logs else None,
        discount=estimand.discount,
        horizon=math.inf if estimand.infinite_horizon else estimand.horizon,
    )
    evidence = dict(comparison.evidence)
    for method, origin in origins.items():
        if isinstance(origin.evaluator, WorldEvaluator):
            _, evidence[method] = collector.evaluate_with_diagnostics(
                origin.evaluator, origin.policies, **origin.request
            )
    tested = dict(comparison.estimates)
    for method, origin in origins.items():
        first, *others = tested[method]
        if origin.backtest is not None and first.backtest is None:
            tested[method] = (origin.backtest(first), *others)
    return replace(
        comparison,
        estimates=tested,
        evidence=evidence,
        logged=collector.summary if comparison.logged is None else comparison.logged,
    )
