"""How well a world foresees held-out logged episodes: what checkpoints are chosen by, without any truth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from vlbm.data.sampler import Plan, Window, held_out_windows
from vlbm.data.scaler import Scaler
from vlbm.data.view import EpisodeView
from vlbm.worlds.base import Imagination, World, predict

STEPS = 10  # longer open loops under logged actions mislead: see docs/method.md
WINDOWS = 512


def open_loop_validation(
    held_out: EpisodeView, imagination: Imagination, *, from_starts: bool = False
) -> Callable[[World], float]:
    """Scores a world by its open-loop error on the same held-out windows every time; lower is better.

    A model of whole episodes has only ever begun with their first state, so its windows begin there too.
    """
    windows = held_out_windows(held_out, Plan(WINDOWS, STEPS, at_start=1.0 if from_starts else 0.1), seed=0)
    # Means, not draws: validation should rank models, not their noise.
    score = _compile_score(replace(imagination, sampling="none"))
    return lambda world: float(score(world, windows))


@lru_cache(maxsize=16)
def _compile_score(imagination: Imagination) -> Callable[[World, Window], Array]:
    """The same function for equal arguments: it is compiled once for all models."""

    @eqx.filter_jit
    def score(world: World, windows: Window) -> Array:
        return open_loop_error(replace(world, imagination=imagination), windows)

    return score


def open_loop_error(world: World, windows: Window) -> Float[Array, ""]:
    """Mean squared error of observations plus that of rewards, standardised, given the logged actions."""
    # A key for every window: where one member of an ensemble imagines an episode, all of them have a turn.
    keys = jax.random.split(jax.random.key(0), len(windows.valid))
    outcome = jax.vmap(lambda window, key: predict(world, window, key))(windows, keys)
    weight = windows.valid / jnp.maximum(windows.valid.sum(axis=0), 1) / windows.valid.shape[1]

    def error(scaler: Scaler, predicted: Array, logged: Array) -> Array:
        squared = (scaler.apply(predicted) - scaler.apply(logged)) ** 2
        return (jnp.where(windows.valid, squared.mean(-1), 0.0) * weight).sum()

    return error(world.observation, outcome.observation, windows.observation[:, 1:]) + error(
        world.reward, outcome.reward[..., None], windows.reward[..., None]
    )
