"""VectorCore: vectorised episodes in a learnt world, the core of both environments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from jaxtyping import Array, Bool, Float, PRNGKeyArray, Shaped, UInt32

from vlbm.data.scaler import Scaler
from vlbm.errors import InputError
from vlbm.estimators.world_models.evaluator import WorldEvaluator
from vlbm.worlds.base import Outcome, World
from vlbm.worlds.rollout import Termination, apply_termination

# Relative rounding error of single precision at a bound.
ROUNDING = 1e-6


class StepResult(NamedTuple):
    """The result of a step for every episode."""

    observation: Float[np.ndarray, "episodes obs"]
    reward: Float[np.ndarray, " episodes"]
    termination_probability: Float[np.ndarray, " episodes"]
    terminated: Bool[np.ndarray, " episodes"]
    truncated: Bool[np.ndarray, " episodes"]


class VectorCore:
    """Vectorised episodes in one world; all random numbers come from the generator given."""

    def __init__(
        self,
        evaluator: WorldEvaluator,
        count: int,
        *,
        horizon: int | None,
        termination: Termination | None,
        world: int,
    ):
        if horizon is not None and horizon < 1:
            raise InputError(f"horizon={horizon}: must be at least 1")
        if not 0 <= world < len(evaluator.worlds):
            raise InputError(f"world={world}: the evaluator's worlds are 0 to {len(evaluator.worlds) - 1}")
        self.world = evaluator.worlds[world]
        self.initial = None if evaluator.settings.start == "prior" else evaluator.initial
        self.horizon = evaluator.horizon if horizon is None else horizon
        self.termination = termination
        self.observation_space = _observation_space(self.world, evaluator.initial)
        self.action_space = _action_space(self.world)
        self.count = count
        self.state: Any = None
        self.time = np.zeros(count, np.int64)
        self.done = np.zeros(count, bool)
        self.observation = np.zeros((count, evaluator.initial.shape[1]), np.float32)

    def reset(
        self,
        reset_mask: Bool[np.ndarray, " episodes"],
        options: Mapping[str, Any],
        *,
        generator: np.random.Generator,
    ) -> Float[np.ndarray, "episodes obs"]:
        """Reset the masked episodes; the observations of all."""
        if self.state is None and not reset_mask.all():
            raise ResetNeeded("call reset() for all episodes before resetting some of them")
        given = options.get("observation")
        start = self._draw_starts(reset_mask, generator) if given is None else self._check_start(given)
        state = None if reset_mask.all() else self.state
        seed = _draw_seed(generator)
        self.state, observation = _reset_masked(self.world, state, self.observation, reset_mask, start, seed)
        self._set_observation(np.array(observation), np.where(reset_mask, 0, self.time))
        self.done = self.done & ~reset_mask
        return self.observation.copy()

    def step(self, action: np.ndarray, *, generator: np.random.Generator) -> StepResult:
        """Step every episode; done ones are reset instead."""
        if self.state is None:
            raise ResetNeeded("call reset() before step()")
        reset_mask = self.done
        action = self._check_action(action, reset_mask)
        start = self._draw_starts(reset_mask, generator)
        seed = _draw_seed(generator)
        self.state, outcome, drawn = _advance(self.world, self.state, action, reset_mask, start, seed)
        self._set_observation(np.array(outcome.observation), np.where(reset_mask, 0, self.time + 1))
        terminated = np.asarray(drawn) & ~reset_mask
        if self.termination is not None:
            terminated |= apply_termination(self.termination, self.observation) & ~reset_mask
        truncated = self.time >= self.horizon
        self.done = terminated | truncated
        reward, termination_probability = (
            np.array(part, np.float64) for part in (outcome.reward, outcome.termination)
        )
        if not np.isfinite(reward).all():
            raise InputError("the model imagined rewards that are not finite")
        return StepResult(self.observation.copy(), reward, termination_probability, terminated, truncated)

    def _set_observation(self, observation: np.ndarray, time: np.ndarray) -> None:
        if not np.isfinite(observation).all():
            episode = int(np.argwhere(~np.isfinite(observation))[0, 0])
            raise InputError(
                f"the model imagined observations that are not finite, at step {time[episode]} of an episode"
            )
        self.observation, self.time = observation, time

    def _draw_starts(
        self, reset_mask: Bool[np.ndarray, " episodes"], generator: np.random.Generator
    ) -> Float[np.ndarray, "episodes obs"] | None:
        """A logged initial observation for every masked episode; None starts from the prior."""
        if self.initial is None:
            return None
        start = np.zeros_like(self.observation)
        if reset_mask.any():
            start[reset_mask] = self.initial[generator.integers(len(self.initial), size=reset_mask.sum())]
        return start

    def _check_start(self, observation: Any) -> Float[np.ndarray, "episodes obs"]:
        given = np.asarray(observation, np.float32)
        shape = self.observation.shape
        if given.shape not in (shape, shape[1:]):
            raise InputError(
                f"options['observation']: it has shape {given.shape}, expected {shape[1:]}"
                + (f" or {shape}" if self.count > 1 else "")
            )
        given = np.broadcast_to(given, shape)
        low, high = self.observation_space.low, self.observation_space.high
        wrong = ~np.isfinite(given) | (given < low) | (given > high)
        if wrong.any():
            episode, column = np.argwhere(wrong)[0]
            raise InputError(
                f"options['observation']: column {column} is {given[episode, column]}, which is outside the "
                f"range of the model's observations, {low[column]} to {high[column]} "
                "(evaluator.with_settings(clip_margin=None) lifts the range)"
            )
        return given

    def _check_action(
        self, action: np.ndarray, reset_mask: Bool[np.ndarray, " episodes"]
    ) -> Shaped[np.ndarray, "episodes *act"]:
        """Validated actions; those of episodes that are reset are ignored."""
        if isinstance(self.action_space, spaces.Discrete):
            n_actions = int(self.action_space.n)
            if not np.issubdtype(action.dtype, np.integer):
                raise InputError(f"action: it is of type {action.dtype}, expected whole numbers")
            if ((action < 0) | (action >= n_actions))[~reset_mask].any():
                raise InputError(f"action: {action[~reset_mask]} is not among the ids 0 to {n_actions - 1}")
            return action.astype(np.int32)
        if not np.issubdtype(action.dtype, np.number):
            raise InputError(f"action: it is of type {action.dtype}, expected numbers")
        with np.errstate(over="ignore"):  # overflow becomes infinite, which is refused below
            action = action.astype(np.float32)
        if not np.isfinite(action[~reset_mask]).all():
            raise InputError(f"action: {action[~reset_mask]} has values that are not finite")
        return action


@eqx.filter_jit
def _reset_masked(
    world: World,
    state: Any,
    observation: Float[Any, "episodes obs"],
    reset_mask: Bool[Any, " episodes"],
    start: Float[Any, "episodes obs"] | None,
    seed: UInt32[Any, ""],
) -> tuple[Any, Float[Array, "episodes obs"]]:
    """Reset the masked episodes; no state is needed if that is all of them."""
    reset_key, _, _ = jax.random.split(jax.random.key(seed), 3)
    new_state, first = _reset(world, start, len(reset_mask), reset_key)
    if state is None:
        return new_state, first
    return _select(reset_mask, (new_state, first), (state, observation))


@eqx.filter_jit
def _advance(
    world: World,
    state: Any,
    action: Shaped[Any, "episodes *act"],
    reset_mask: Bool[Any, " episodes"],
    start: Float[Any, "episodes obs"] | None,
    seed: UInt32[Any, ""],
) -> tuple[Any, Outcome, Bool[Array, " episodes"]]:
    reset_key, step_key, termination_key = jax.random.split(jax.random.key(seed), 3)
    noise = jax.vmap(world.draw_noise)(jax.random.split(step_key, len(reset_mask)))
    state, outcome = jax.vmap(world.step)(state, action, noise)
    terminated = jax.random.uniform(termination_key, reset_mask.shape) < outcome.termination

    def begin() -> tuple[Any, Outcome]:
        new_state, first = _reset(world, start, len(reset_mask), reset_key)
        nothing = jnp.zeros(reset_mask.shape)
        return _select(reset_mask, (new_state, Outcome(first, nothing, nothing)), (state, outcome))

    # Skipped on most steps: encoding an observation costs as much as a step.
    state, outcome = jax.lax.cond(reset_mask.any(), begin, lambda: (state, outcome))
    return state, outcome, terminated


def _reset(
    world: World, start: Float[Array, "episodes obs"] | None, count: int, key: PRNGKeyArray
) -> tuple[Any, Float[Array, "episodes obs"]]:
    keys = jax.random.split(key, count)
    if start is None:
        return jax.vmap(world.reset_from_prior)(keys)
    return jax.vmap(lambda first, key: world.reset(first, world.draw_noise(key)))(start, keys), start


def _select(reset_mask: Bool[Array, " episodes"], new: Any, old: Any) -> Any:
    """The new state of masked episodes, the old one of the others."""
    return jax.tree.map(
        lambda new, old: jnp.where(reset_mask.reshape(-1, *[1] * (new.ndim - 1)), new, old), new, old
    )


def _observation_space(world: World, initial: Float[np.ndarray, "starts obs"]) -> spaces.Box:
    """The range that predictions are clipped to; unbounded without clipping."""
    margin = world.imagination.clip_margin
    if margin is None:
        return spaces.Box(-np.inf, np.inf, initial.shape[1:], np.float32)
    low, high = _raw_range(world.observation, margin)
    # Logged episodes that were held out from training may start outside the range of those trained on.
    return spaces.Box(np.minimum(low, initial.min(axis=0)), np.maximum(high, initial.max(axis=0)))


def _action_space(world: World) -> spaces.Box | spaces.Discrete:
    if world.n_actions is not None:
        return spaces.Discrete(world.n_actions)
    return spaces.Box(*_raw_range(world.action, 0.0))


def _raw_range(scaler: Scaler, margin: float) -> tuple[np.ndarray, np.ndarray]:
    """The logged range in raw units, widened by a share of it and by rounding errors."""
    mean, scale, low, high = (
        np.asarray(part, np.float64) for part in (scaler.mean, scaler.scale, scaler.low, scaler.high)
    )
    known = np.isfinite(low) & np.isfinite(high)
    low, high = np.where(known, low, 0.0) * scale + mean, np.where(known, high, 0.0) * scale + mean
    widening = margin * (high - low)
    low, high = low - widening, high + widening
    rounding = ROUNDING * np.maximum(np.abs(low), np.abs(high))
    return (
        np.where(known, low - rounding, -np.inf).astype(np.float32),
        np.where(known, high + rounding, np.inf).astype(np.float32),
    )


def _draw_seed(generator: np.random.Generator) -> np.uint32:
    """The seed of everything random in one call."""
    return generator.integers(2**32, dtype=np.uint32)
