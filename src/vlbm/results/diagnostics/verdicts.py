"""Verdicts on all estimates of a run: the same on the console, in print() and on the page."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from vlbm.results.diagnostics.trust import OUTSIDE, Diagnostics, Level, Verdict, assess_trust
from vlbm.results.estimate import Estimate
from vlbm.results.estimates import Estimates
from vlbm.results.merging import merge_texts

# What marks an estimate in a table.
MARKS = {"sound": "", "caution": "!", "doubtful": "!!"}


def judge(estimates: Estimates, *, imagined_outside: Mapping[str, float] | None = None) -> dict[str, Verdict]:
    """A verdict on every policy's estimate.

    `imagined_outside` are the shares of steps outside the log in what another method imagined: they stand in
    where this one has none of its own.
    """
    logged, elsewhere = estimates.logged, imagined_outside or {}
    returns = None
    if logged is not None and logged.lowest is not None and logged.highest is not None:
        returns = np.array([logged.lowest, logged.highest])

    def judge_row(row: Estimate) -> Verdict:
        diagnostics = Diagnostics(
            candidates=estimates.values,
            logged_returns=returns,
            logged_terminated=None if logged is None else logged.terminated,
            outside=elsewhere.get(row.policy),
            terminated=row.terminated,
            model_values=np.array(row.model_values) if row.model_values else None,
        )
        return assess_trust(row, diagnostics)

    return {row.policy: judge_row(row) for row in estimates}


def judge_methods(runs: Mapping[str, Estimates]) -> dict[str, dict[str, Verdict]]:
    """Verdicts by method and policy: what one method imagined outside the log speaks to all of them."""
    outside = find_outside(runs)
    return {method: judge(estimates, imagined_outside=outside) for method, estimates in runs.items()}


def find_outside(runs: Mapping[str, Estimates]) -> dict[str, float]:
    """Of every policy, the share of imagined steps outside the log, by the first method that imagines any."""
    found: dict[str, float] = {}
    for estimates in runs.values():
        for row in estimates:
            if row.model_values and OUTSIDE in row.details:
                found.setdefault(row.policy, row.details[OUTSIDE])
    return found


def list_objections(verdicts: Mapping[str, Verdict]) -> list[tuple[Level, str]]:
    """All objections with their level, the gravest first; those that differ only in numbers are merged."""
    levels: tuple[Level, ...] = ("doubtful", "caution")
    return [
        (level, text)
        for level in levels
        for text in merge_texts(
            (policy, reason.text)
            for policy, verdict in verdicts.items()
            for reason in verdict.objections
            if reason.level == level
        )
    ]
