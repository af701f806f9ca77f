"""The back-test: the policy that logged the data is cloned and valued as any other; its returns are known."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from vlbm.estimand import Estimand
from vlbm.estimators.behaviour_cloning import BehaviourCloning, clone_once
from vlbm.progress import Progress
from vlbm.results.backtest import SHARE, Backtest, hold_out
from vlbm.results.estimates import Estimates


def add_backtest(
    found: Estimates, *, evaluator: Any, asked: Estimand, progress: Progress, **imagined: Any
) -> Estimates:
    """The estimates with how far off the evaluator was for the policy that logged the data."""
    began = time.monotonic()
    try:
        tested = run_backtest(evaluator, asked, progress=progress, **imagined)
    except KeyboardInterrupt:
        return replace(found, interrupted=True)
    warnings = () if tested is None else tested.warnings
    seconds = {**found.seconds, "backtest": time.monotonic() - began}
    return replace(found, backtest=tested, warnings=(*found.warnings, *warnings), seconds=seconds)


def run_backtest(evaluator: Any, asked: Estimand, *, progress: Progress, **imagined: Any) -> Backtest | None:
    """The clone learns from the log less the episodes that world models hold out; these are compared with.

    None where the log is not in memory, as for saved models and mapped files.
    """
    log = evaluator.log
    if log is None or log.mapped:
        return None
    share = getattr(evaluator.settings, "held_out", SHARE)
    held_out = hold_out(log, asked, share=share, seed=evaluator.seed)
    if held_out is None:
        return None
    clone = clone_once(
        BehaviourCloning(held_out=share),
        log,
        seed=evaluator.seed,
        cache=evaluator.cache,
        progress=progress.with_title("cloning the behaviour policy"),
    )
    found = evaluator.evaluate(
        {"behaviour": clone.policy},
        **held_out.estimand.arguments,
        progress=progress.with_title("back-test"),
        **imagined,
    )
    if found.interrupted:
        raise KeyboardInterrupt
    return held_out.compare(found[0])
