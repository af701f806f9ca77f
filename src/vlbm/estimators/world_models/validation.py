"""How well a world predicts held-out logged episodes: what checkpoints are chosen by, without any truth."""

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
from vlbm.worlds.vlbm import BranchingModel, Weights, algorithm_1

STEPS = 10  # longer open loops under logged actions mislead: see docs/method.md
WINDOWS = 512
LEARNT = 0.95  # a model whose squared error is a larger share of the baseline's has learnt nothing


def open_loop_validation(
    held_out: EpisodeView, imagination: Imagination, *, from_starts: bool = False
) -> Callable[[World], float]:
    """Scores a world by its open-loop error on the same held-out windows every time; lower is better.

    A model of whole episodes has only ever begun with their first state, so its windows begin there too.
    """
    windows = validation_windows(held_out, from_starts=from_starts)
    # Means, not draws: validation should rank models, not their noise.
    score = _compile_score(replace(imagination, sampling="none"))
    return lambda world: float(score(world, windows))


def validation_windows(held_out: EpisodeView, *, from_starts: bool) -> Window:
    return held_out_windows(held_out, Plan(WINDOWS, STEPS, at_start=1.0 if from_starts else 0.1), seed=0)


def warn_if_untrained(
    error: float, world: World, held_out: EpisodeView, *, from_starts: bool
) -> tuple[str, ...]:
    """Warns where a validation error is hardly smaller than the baseline's, in the scales of a world."""
    baseline = float(baseline_error(world, validation_windows(held_out, from_starts=from_starts)))
    if error < LEARNT * baseline or baseline == 0:
        return ()
    return (
        f"the model has hardly learnt anything: over {STEPS} held-out steps its squared error is "
        f"{error / baseline:.2g} times that of predicting no change and the mean reward; train it longer "
        "(--set steps=...), or do not trust it",
    )


def baseline_error(world: World, windows: Window) -> Float[Array, ""]:
    """The same error of the better of two baselines: nothing changes, or all is as on average."""
    weight = windows.valid / jnp.maximum(windows.valid.sum(axis=0), 1) / windows.valid.shape[1]

    def total(squared: Array) -> Array:
        return (jnp.where(windows.valid, squared.mean(-1), 0.0) * weight).sum()

    s = world.observation.apply(windows.observation)
    unchanged, average = total((s[:, 1:] - s[:, :1]) ** 2), total(s[:, 1:] ** 2)
    return jnp.minimum(unchanged, average) + total(world.reward.apply(windows.reward[..., None]) ** 2)


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


def held_out_bound(model: BranchingModel, held_out: EpisodeView, plan: Plan) -> float:
    """The bound (eq. 6) of held-out windows per step, averaged over branches; batch norms see the windows."""
    windows = held_out_windows(held_out, plan._replace(batch=min(WINDOWS, plan.batch)), seed=0)
    _, terms, _ = eqx.filter_jit(algorithm_1)(model, windows, Weights(), key=jax.random.key(0))
    branches, steps = len(model.weight_root), windows.valid.sum() / len(windows.valid)
    return float((terms.reconstruction - terms.initial_kl - terms.kl) / branches / steps)
