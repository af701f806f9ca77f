"""How well a world foresees held-out logged episodes: what checkpoints are chosen by, without any truth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import equinox as eqx
import jax

from vlbm.models.base import Imagination, World, open_loop_error
from vlbm.selection import Selection
from vlbm.windows import Window, held_out_windows

VALIDATION_STEPS = 10  # longer open loops under logged actions mislead: see docs/method.md
VALIDATION_WINDOWS = 512


def open_loop_validation(held_out: Selection, imagination: Imagination) -> Callable[[World], float]:
    """Scores a world by its open-loop error on the same held-out windows every time; lower is better."""
    windows = held_out_windows(held_out, steps=VALIDATION_STEPS, count=VALIDATION_WINDOWS, seed=0)
    # Means, not draws: validation should rank models, not their luck.
    steady = replace(imagination, sampling="none")

    # Windows are an argument: as constants, they would make another program for every model.
    @eqx.filter_jit
    def validate(world: World, windows: Window) -> jax.Array:
        return open_loop_error(replace(world, imagination=steady), windows, key=jax.random.key(0)).score

    return lambda world: float(validate(world, windows))
