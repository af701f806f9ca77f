"""Observations of many episodes over time, and how many episodes still run."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from vlbm.data.episodes import Episodes

POINTS = 60  # times at which observations are taken
BAND = (0.05, 0.5, 0.95)  # quantiles over episodes


def time_points(horizon: int) -> Int[np.ndarray, " times"]:
    """Times from 0 to the horizon, all of them where they are few."""
    return np.unique(np.round(np.linspace(0, horizon, min(horizon, POINTS) + 1)).astype(np.int64))


def observations_at(
    episodes: Episodes, times: Int[np.ndarray, " times"], dimensions: Int[np.ndarray, " dims"]
) -> Float[np.ndarray, "episodes times dims"]:
    """Observations at given times; NaN after the end of an episode."""
    there = times <= episodes.length[:, None]
    rows = episodes.first_observation[:, None] + np.minimum(times, episodes.length[:, None])
    found = episodes.observation[rows][..., dimensions].astype(np.float32)
    found[~there] = np.nan
    return found


def quantile_band(
    values: Float[np.ndarray, "episodes times dims"],
) -> Float[np.ndarray, "times dims quantiles"]:
    """Quantiles over the episodes that still run; NaN where none does."""
    out = np.full((*values.shape[1:], len(BAND)), np.nan, np.float32)
    for time in range(values.shape[1]):
        running = values[~np.isnan(values[:, time, 0]), time] if values.shape[2] else values[:0, time]
        if len(running):
            out[time] = np.moveaxis(np.quantile(running, BAND, axis=0), 0, -1)
    return out


def share_running(
    length: Int[np.ndarray, " episodes"], times: Int[np.ndarray, " times"]
) -> Float[np.ndarray, " times"]:
    """The share of episodes that have an observation at each time."""
    return (times <= length[:, None]).mean(axis=0)
