"""Seconds, as little disturbed by other work on the machine as can be."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from typing import Any

from telling import cores


def clock() -> float:
    """Processor time where one core is used, for others may want that core too; else the time of day.

    On an idle machine the two are the same for what runs on one core. Processes that were started and
    have ended count too.
    """
    if cores() > 1:
        return time.perf_counter()
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def timed(call: Callable[[], Any]) -> float:
    began = clock()
    _finished(call())
    return clock() - began


def fastest(call: Callable[[], Any], *, repeats: int) -> float:
    """Seconds of the fastest of several calls, after one that compiles."""
    return min([timed(call) for _ in range(repeats + 1)][1:])


def _finished(result: Any) -> None:
    """Waits for what JAX still computes; a benchmark that never loaded JAX need not load it for this."""
    if "jax" in sys.modules:
        sys.modules["jax"].block_until_ready(result)
