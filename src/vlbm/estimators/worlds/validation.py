"""How well a world foresees held-out logged episodes: what checkpoints are chosen by, without any truth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, lru_cache

import equinox as eqx
import jax

from vlbm.models.base import Imagination, World, open_loop_error
from vlbm.selection import Selection
from vlbm.windows import Window, held_out_windows

VALIDATION_STEPS = 10  # longer open loops under logged actions mislead: see docs/method.md
VALIDATION_WINDOWS = 512


def open_loop_validation(held_out: Selection, imagination: Imagination) -> Callable[[World], float]:
    """Scores a world by its open-loop error on the same held-out windows every time; lower is better."""
    # Means, not draws: validation should rank models, not their luck.
    score = _scoring(replace(imagination, sampling="none"))

    @cache
    def windows() -> Window:
        """Drawn when they are first asked for: training need not wait for them."""
        return held_out_windows(held_out, steps=VALIDATION_STEPS, count=VALIDATION_WINDOWS, seed=0)

    return lambda world: float(score(world, windows()))


@lru_cache(maxsize=16)
def _scoring(imagination: Imagination) -> Callable[[World, Window], jax.Array]:
    """The same function for equal arguments: it is traced once for all models."""

    # Windows are an argument: as constants, they would make another program for every model.
    @eqx.filter_jit
    def score(world: World, windows: Window) -> jax.Array:
        return open_loop_error(replace(world, imagination=imagination), windows, key=jax.random.key(0)).score

    return score
