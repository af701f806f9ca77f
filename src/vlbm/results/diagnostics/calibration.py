"""Calibration of world models: predictions of held-out episodes against what was logged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray, Shaped

from vlbm.data.episodes import Episodes
from vlbm.data.sampler import Plan, Window, held_out_windows
from vlbm.data.view import EpisodeView
from vlbm.worlds.base import World, predict

LEVELS = tuple(np.round(np.arange(0.1, 0.95, 0.1), 1).tolist())
# One less than a multiple of 20, so that ranks among the draws hit every level exactly.
DRAWS = 19
STEPS = 30
WINDOWS = 64
AHEAD = (1, 10, 30)  # steps ahead at which coverage is measured


@dataclass(frozen=True, eq=False)
class Calibration:
    """Coverage of predicted intervals, and open-loop prediction error."""

    ahead: tuple[int, ...]
    levels: tuple[float, ...]
    coverage: Float[np.ndarray, "ahead levels"]  # of observations, averaged over their dimensions
    reward_coverage: Float[np.ndarray, "ahead levels"]
    error: Float[np.ndarray, " steps"]  # root mean square, in standard deviations of the observations
    standstill: Float[np.ndarray, " steps"]  # the error of predicting no change
    windows: int


def calibrate(
    worlds: Sequence[World],
    held_out: Episodes | EpisodeView,
    *,
    steps: int = STEPS,
    windows: int = WINDOWS,
    seed: int = 0,
) -> Calibration:
    """Every world's predictions from single observations of held-out episodes, averaged.

    Actions are the logged ones. Observations and rewards are always sampled here, even if roll-outs use
    their means: calibration is about the predicted distributions.
    """
    log = EpisodeView.of(held_out)
    steps = min(steps, int(log.length.max()))
    ahead = tuple(step for step in AHEAD if step <= steps)
    window = held_out_windows(log, Plan(windows, steps, at_start=0.1), seed=seed)
    keys = jax.random.split(jax.random.key(seed), len(worlds))
    parts = [_calibrate(world, window, ahead, key) for world, key in zip(worlds, keys, strict=True)]
    coverage, reward_coverage, error, standstill = (
        np.mean(part, axis=0) for part in zip(*parts, strict=True)
    )
    return Calibration(ahead, LEVELS, coverage, reward_coverage, error, standstill, windows)


def _calibrate(
    world: World, window: Window, ahead: Sequence[int], key: PRNGKeyArray
) -> tuple[np.ndarray, ...]:
    sampling = replace(world, imagination=replace(world.imagination, sampling="all"))
    observation, reward = map(np.asarray, predict_open_loop(sampling, window, draws=DRAWS, key=key))
    # Time is the leading axis, as in the predictions.
    logged, paid, valid = (
        np.asarray(part).swapaxes(0, 1) for part in (window.observation, window.reward, window.valid)
    )
    # Constant dimensions have no scale to measure errors in.
    moving = np.flatnonzero(np.asarray(world.observation.high > world.observation.low))
    scale = np.asarray(world.observation.scale)[moving]

    def error(predicted: np.ndarray) -> np.ndarray:
        squared = (((predicted - logged[1:])[..., moving] / scale) ** 2).sum(axis=-1) / max(len(moving), 1)
        total = np.where(valid, squared, 0.0).sum(axis=1)
        return np.sqrt(total / np.maximum(valid.sum(axis=1), 1))

    return (
        np.array(
            [
                measure_coverage(observation[step - 1][..., moving], logged[step][:, moving], valid[step - 1])
                for step in ahead
            ]
        ),
        np.array(
            [
                measure_coverage(reward[step - 1][..., None], paid[step - 1][:, None], valid[step - 1])
                for step in ahead
            ]
        ),
        error(observation.mean(axis=2)),
        error(logged[:1]),
    )


def measure_coverage(
    drawn: Float[np.ndarray, "batch draws dims"],
    logged: Float[np.ndarray, "batch dims"],
    valid: Bool[np.ndarray, " batch"],
) -> Float[np.ndarray, " levels"]:
    """The share of logged values inside the central interval of every level, by rank among the draws."""
    ranks = rank_among(drawn[valid], logged[valid])
    place = (ranks + 0.5) / (drawn.shape[1] + 1)
    return np.array(
        [(np.abs(place - 0.5) <= level / 2 + 1e-9).mean() if place.size else 0.0 for level in LEVELS]
    )


def rank_among(
    drawn: Float[np.ndarray, "batch draws dims"], logged: Float[np.ndarray, "batch dims"]
) -> Shaped[np.ndarray, "batch dims"]:
    """How many draws lie below the logged value; equal ones count half."""
    below = (drawn < logged[:, None]).sum(axis=1)
    return below + (drawn == logged[:, None]).sum(axis=1) / 2


@eqx.filter_jit
def predict_open_loop(
    world: World, window: Window, *, draws: int, key: PRNGKeyArray
) -> tuple[Float[Array, "steps batch draws obs"], Float[Array, "steps batch draws"]]:
    """Many sampled predictions of every window, given its first observation and its actions."""
    keys = jax.random.split(key, (len(window.reward), draws))
    of_window = jax.vmap(lambda window, keys: jax.vmap(lambda key: predict(world, window, key))(keys))
    outcome = of_window(window, keys)
    return jnp.moveaxis(outcome.observation, 2, 0), jnp.moveaxis(outcome.reward, 2, 0)
