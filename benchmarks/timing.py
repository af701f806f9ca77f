"""Seconds, as little disturbed by other work on the machine as can be."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
from telling import cores


def clock() -> float:
    """Processor time where one core is used, for others may want that core too; else the time of day.

    On an idle machine the two are the same for what runs on one core.
    """
    return time.process_time() if cores() == 1 else time.perf_counter()


def timed(call: Callable[[], Any]) -> float:
    began = clock()
    jax.block_until_ready(call())
    return clock() - began


def fastest(call: Callable[[], Any], *, repeats: int) -> float:
    """Seconds of the fastest of several calls, after one that compiles."""
    return min([timed(call) for _ in range(repeats + 1)][1:])
