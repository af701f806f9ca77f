"""A learnt world as a Gymnasium environment, one episode at a time or many side by side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray, Shaped, UInt32

from vlbm.errors import InputError, require
from vlbm.estimators.world_model import WorldEvaluator
from vlbm.models.base import Outcome, World
from vlbm.rollout import Termination
from vlbm.scaling import Scaler

try:
    import gymnasium
    from gymnasium import spaces
    from gymnasium.error import ResetNeeded
    from gymnasium.vector import AutoresetMode, VectorEnv
    from gymnasium.vector.utils import batch_space
except ImportError:
    require("gymnasium", extra="gym", purpose="A learnt world as an environment")
    raise

# How far rounding can carry a single-precision number past a bound, as a share of the bound.
ROUNDING = 1e-6


class LearnedEnvironment(gymnasium.Env[np.ndarray, Any]):
    """A fitted world to act in.

    Episodes start from logged initial observations (or from the prior, if the settings say so, or from
    `reset(options={"observation": ...})`), end with the learnt probability or by the user's rule, and
    are cut off at the horizon. Actions beyond the logged range are taken as they are: the world was
    never shown what they do.
    """

    def __init__(
        self,
        evaluator: WorldEvaluator,
        horizon: int | None = None,
        termination: Termination | None = None,
        world: int = 0,
    ):
        self.metadata = {"render_modes": []}
        self._stage = _Stage(evaluator, 1, horizon=horizon, termination=termination, world=world)
        self.observation_space = self._stage.observation_space
        self.action_space = self._stage.action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        observation = self._stage.reset(np.ones(1, bool), options or {}, generator=self.np_random)
        return observation[0], {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if self._stage.ended.any():
            raise ResetNeeded("the episode has ended: call reset() before step()")
        moved = self._stage.step(_shaped(action, self.action_space)[None], generator=self.np_random)
        return (
            moved.observation[0],
            float(moved.reward[0]),
            bool(moved.terminated[0]),
            bool(moved.truncated[0]),
            {"ending_probability": float(moved.ending[0])},
        )


class LearnedVectorEnvironment(VectorEnv[np.ndarray, Any, np.ndarray]):
    """Many episodes in one fitted world, advanced by one compiled call a step.

    An episode that ended starts afresh in the next step, whatever its action then: its reward is 0.
    """

    def __init__(
        self,
        evaluator: WorldEvaluator,
        num_envs: int = 1,
        horizon: int | None = None,
        termination: Termination | None = None,
        world: int = 0,
    ):
        if num_envs < 1:
            raise InputError(f"num_envs={num_envs}: must be at least 1")
        self.metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.NEXT_STEP}
        self.num_envs = num_envs
        self._stage = _Stage(evaluator, num_envs, horizon=horizon, termination=termination, world=world)
        self.single_observation_space = self._stage.observation_space
        self.single_action_space = self._stage.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start all episodes, or those that `options["reset_mask"]` marks."""
        super().reset(seed=seed)
        options = options or {}
        due = np.asarray(options.get("reset_mask", np.ones(self.num_envs, bool)))
        if due.shape != (self.num_envs,) or due.dtype != bool:
            raise InputError(f"options['reset_mask']: expected {self.num_envs} values, each True or False")
        return self._stage.reset(due, options, generator=self.np_random), {}

    def step(self, actions: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        underway = ~self._stage.ended
        moved = self._stage.step(_shaped(actions, self.action_space), generator=self.np_random)
        info = {"ending_probability": moved.ending, "_ending_probability": underway}
        return moved.observation, moved.reward, moved.terminated, moved.truncated, info


class _Moved(NamedTuple):
    """What a step showed of every episode."""

    observation: Float[np.ndarray, "episodes obs"]
    reward: Float[np.ndarray, " episodes"]
    ending: Float[np.ndarray, " episodes"]
    terminated: Bool[np.ndarray, " episodes"]
    truncated: Bool[np.ndarray, " episodes"]


class _Stage:
    """Episodes side by side in one world; all that is random comes from the generator given."""

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
        chosen = evaluator.worlds[world]
        prune = getattr(chosen, "pruned", None)
        self.world = jax.tree.map(
            lambda leaf: jnp.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf,
            chosen if prune is None else prune(),
        )
        self.initial = evaluator.initial if evaluator.settings.start == "logged" else None
        self.horizon = evaluator.horizon if horizon is None else horizon
        self.termination = termination
        self.observation_space = _observation_space(chosen, evaluator.initial)
        self.action_space = _action_space(chosen)
        self.count = count
        self.state: Any = None
        self.time = np.zeros(count, np.int64)
        self.ended = np.zeros(count, bool)
        self.observation = np.zeros((count, evaluator.initial.shape[1]), np.float32)

    def reset(
        self,
        due: Bool[np.ndarray, " episodes"],
        options: Mapping[str, Any],
        *,
        generator: np.random.Generator,
    ) -> Float[np.ndarray, "episodes obs"]:
        """The observation of every episode, once those that are due have begun."""
        if self.state is None and not due.all():
            raise ResetNeeded("call reset() for all episodes before resetting some of them")
        given = options.get("observation")
        start = self._starts(due, generator) if given is None else self._given(given)
        inputs = jax.device_put((self.observation, due, start, _luck(generator)))
        self.state, observation = _begin(self.world, None if due.all() else self.state, *inputs)
        self._show(np.array(observation), np.where(due, 0, self.time))
        self.ended = self.ended & ~due
        return self.observation.copy()

    def step(self, action: np.ndarray, *, generator: np.random.Generator) -> _Moved:
        """Move every episode on; those that have ended begin afresh instead."""
        if self.state is None:
            raise ResetNeeded("call reset() before step()")
        due = self.ended
        action = self._checked(action, due)
        inputs = jax.device_put((action, due, self._starts(due, generator), _luck(generator)))
        self.state, outcome, ended = _advance(self.world, self.state, *inputs)
        self._show(np.array(outcome.observation), np.where(due, 0, self.time + 1))
        terminated = np.asarray(ended) & ~due
        if self.termination is not None:
            terminated |= _verdict(self.termination, self.observation) & ~due
        truncated = self.time >= self.horizon
        self.ended = terminated | truncated
        reward, ending = (np.array(part, np.float64) for part in (outcome.reward, outcome.ending))
        if not np.isfinite(reward).all():
            raise InputError("the model imagined rewards that are not finite")
        return _Moved(self.observation.copy(), reward, ending, terminated, truncated)

    def _show(self, observation: np.ndarray, time: np.ndarray) -> None:
        if not np.isfinite(observation).all():
            episode = int(np.argwhere(~np.isfinite(observation))[0, 0])
            raise InputError(
                f"the model imagined observations that are not finite, at step {time[episode]} of an episode"
            )
        self.observation, self.time = observation, time

    def _starts(
        self, due: Bool[np.ndarray, " episodes"], generator: np.random.Generator
    ) -> Float[np.ndarray, "episodes obs"] | None:
        """A logged initial observation for every episode that is due; None leaves it to the prior."""
        if self.initial is None:
            return None
        start = np.zeros_like(self.observation)
        if due.any():
            start[due] = self.initial[generator.integers(len(self.initial), size=due.sum())]
        return start

    def _given(self, observation: Any) -> Float[np.ndarray, "episodes obs"]:
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

    def _checked(
        self, action: np.ndarray, due: Bool[np.ndarray, " episodes"]
    ) -> Shaped[np.ndarray, "episodes *act"]:
        """Actions as the world takes them; those of episodes that begin afresh are not looked at."""
        if isinstance(self.action_space, spaces.Discrete):
            choices = int(self.action_space.n)
            if not np.issubdtype(action.dtype, np.integer):
                raise InputError(f"action: it is of type {action.dtype}, expected whole numbers")
            if ((action < 0) | (action >= choices))[~due].any():
                raise InputError(f"action: {action[~due]} is not among the ids 0 to {choices - 1}")
            return action.astype(np.int32)
        if not np.issubdtype(action.dtype, np.number):
            raise InputError(f"action: it is of type {action.dtype}, expected numbers")
        with np.errstate(over="ignore"):  # what is too large becomes infinite, and is refused as such
            action = action.astype(np.float32)
        if not np.isfinite(action[~due]).all():
            raise InputError(f"action: {action[~due]} has values that are not finite")
        return action


@eqx.filter_jit
def _begin(
    world: World,
    state: Any,
    observation: Float[Array, "episodes obs"],
    due: Bool[Array, " episodes"],
    start: Float[Array, "episodes obs"] | None,
    luck: UInt32[Array, ""],
) -> tuple[Any, Float[Array, "episodes obs"]]:
    """Begin the episodes that are due; no state is needed if that is all of them."""
    begin_key, _, _ = jax.random.split(jax.random.key(luck), 3)
    fresh, first = _fresh(world, start, len(due), key=begin_key)
    if state is None:
        return fresh, first
    return _merged(world, due, fresh, state), jnp.where(due[:, None], first, observation)


@eqx.filter_jit
def _advance(
    world: World,
    state: Any,
    action: Shaped[Array, "episodes *act"],
    due: Bool[Array, " episodes"],
    start: Float[Array, "episodes obs"] | None,
    luck: UInt32[Array, ""],
) -> tuple[Any, Outcome, Bool[Array, " episodes"]]:
    begin_key, world_key, ending_key = jax.random.split(jax.random.key(luck), 3)
    state, outcome = world.step(state, action, key=world_key)
    ended = jax.random.uniform(ending_key, due.shape) < outcome.ending

    def begun() -> tuple[Any, Outcome]:
        fresh, first = _fresh(world, start, len(due), key=begin_key)
        return _merged(world, due, fresh, state), Outcome(
            observation=jnp.where(due[:, None], first, outcome.observation),
            reward=jnp.where(due, 0.0, outcome.reward),
            ending=jnp.where(due, 0.0, outcome.ending),
        )

    # Most steps begin no episode, and encoding an observation costs as much as a step.
    state, outcome = jax.lax.cond(due.any(), begun, lambda: (state, outcome))
    return state, outcome, ended


def _fresh(
    world: World, start: Float[Array, "episodes obs"] | None, count: int, *, key: PRNGKeyArray
) -> tuple[Any, Float[Array, "episodes obs"]]:
    if start is None:
        return world.begin_from_prior((count,), key=key)
    return world.begin(start, key=key), start


def _merged(world: World, due: Bool[Array, " episodes"], fresh: Any, state: Any) -> Any:
    """The fresh state for the episodes that are due, the old one for the others."""

    def shapes(count: int) -> Any:
        start = jnp.zeros((count, world.observation.mean.shape[0]))
        return jax.eval_shape(lambda: world.begin(start, key=jax.random.key(0)))

    def merge(one: Any, two: Any, new: Array, old: Array) -> Array:
        # Only the world knows how it lays out its state: the axis over episodes is the one that grows.
        axis = next(axis for axis in range(new.ndim) if one.shape[axis] != two.shape[axis])
        return jnp.where(due.reshape(-1, *[1] * (new.ndim - axis - 1)), new, old)

    return jax.tree.map(merge, shapes(1), shapes(2), fresh, state)


def _observation_space(world: World, initial: Float[np.ndarray, "starts obs"]) -> spaces.Box:
    """The range predictions are kept in; unbounded where they are not."""
    margin = world.imagination.clip_margin
    if margin is None:
        return spaces.Box(-np.inf, np.inf, initial.shape[1:], np.float32)
    low, high = _raw_range(world.observation, margin)
    # Logged episodes that were held out from training may start outside the range of those trained on.
    return spaces.Box(np.minimum(low, initial.min(axis=0)), np.maximum(high, initial.max(axis=0)))


def _action_space(world: World) -> spaces.Box | spaces.Discrete:
    if world.choices is not None:
        return spaces.Discrete(world.choices)
    return spaces.Box(*_raw_range(world.action, 0.0))


def _raw_range(scaler: Scaler, margin: float) -> tuple[np.ndarray, np.ndarray]:
    """The range that was seen, in raw units, widened by a share of it and by what rounding may add."""
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


def _verdict(
    termination: Termination, observation: Float[np.ndarray, "episodes obs"]
) -> Bool[np.ndarray, " episodes"]:
    verdict = np.asarray(termination(observation))
    if verdict.shape != observation.shape[:1]:
        raise InputError(
            f"termination: for {len(observation)} observations it returned an array of shape "
            f"{verdict.shape}; it must return one True or False for each"
        )
    return verdict.astype(bool)


def _shaped(action: Any, space: spaces.Space) -> np.ndarray:
    action = np.asarray(action)
    if action.shape != space.shape:
        raise InputError(f"action: it has shape {action.shape}, expected {space.shape}")
    return action


def _luck(generator: np.random.Generator) -> np.uint32:
    """The seed of everything random in one call."""
    return generator.integers(2**32, dtype=np.uint32)
