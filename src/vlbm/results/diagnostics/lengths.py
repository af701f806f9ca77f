"""Lengths: imagined episodes that never end where logged ones did."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vlbm.data.episodes import Episodes

OFTEN = 0.1  # share of logged episodes that terminated before the horizon


def length_warnings(imagined: Sequence[Episodes], logged: Episodes, horizon: int | None) -> tuple[str, ...]:
    """Warns if no imagined episode ended before the horizon though logged ones did, or are shorter."""
    if horizon is None or any((episodes.length < horizon).any() for episodes in imagined):
        return ()
    ended = logged.terminated & (logged.length < horizon)
    if ended.mean() >= OFTEN:
        usual = int(np.median(logged.length[ended]))
        return (
            f"every imagined episode goes on to the horizon of {horizon} steps, but {ended.mean():.0%} of "
            f"logged ones terminated earlier, half of these by step {usual}: policies may last longer, or "
            f"the model misses terminations; a smaller horizon (--horizon {usual}) relies less on that",
        )
    if horizon > logged.longest:
        return (
            f"every imagined episode goes on to the horizon of {horizon} steps, and no logged one is longer "
            f"than {logged.longest}: what comes later is guessed; --horizon {logged.longest} leaves it out",
        )
    return ()
