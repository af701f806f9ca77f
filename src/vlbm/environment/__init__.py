"""A learnt world as a Gymnasium environment, single or vectorised."""

from __future__ import annotations

from typing import Any

import numpy as np

from vlbm.errors import InputError, require
from vlbm.estimators.world_models.evaluator import WorldEvaluator
from vlbm.worlds.rollout import Termination

try:
    import gymnasium
    from gymnasium import spaces
    from gymnasium.error import ResetNeeded
    from gymnasium.vector import AutoresetMode, VectorEnv
    from gymnasium.vector.utils import batch_space
except ImportError:
    require("gymnasium", extra="gym", purpose="A learnt world as an environment")
    raise

from vlbm.environment.core import VectorCore

__all__ = ["LearnedEnvironment", "LearnedVectorEnvironment"]


class LearnedEnvironment(gymnasium.Env[np.ndarray, Any]):
    """A fitted world to act in.

    Episodes start from logged initial observations (or from the prior, if the settings say so, or from
    `reset(options={"observation": ...})`), terminate with the learnt probability or by the user's rule, and
    are truncated at the horizon. Actions outside the logged range are not clipped: the world extrapolates.

    Args:
        evaluator: A fitted world model.
        horizon: Steps after which an episode is truncated; by default as many as the longest logged episode
            has.
        termination: A rule you know, instead of the learnt probability.
        world: Which of the fitted models.
    """

    def __init__(
        self,
        evaluator: WorldEvaluator,
        horizon: int | None = None,
        termination: Termination | None = None,
        world: int = 0,
    ):
        self.metadata = {"render_modes": []}
        self._core = VectorCore(evaluator, 1, horizon=horizon, termination=termination, world=world)
        self.observation_space = self._core.observation_space
        self.action_space = self._core.action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        observation = self._core.reset(np.ones(1, bool), options or {}, generator=self.np_random)
        return observation[0], {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if self._core.done.any():
            raise ResetNeeded("the episode has ended: call reset() before step()")
        result = self._core.step(_check_shape(action, self.action_space)[None], generator=self.np_random)
        return (
            result.observation[0],
            float(result.reward[0]),
            bool(result.terminated[0]),
            bool(result.truncated[0]),
            {"termination_probability": float(result.termination_probability[0])},
        )


class LearnedVectorEnvironment(VectorEnv[np.ndarray, Any, np.ndarray]):
    """Many episodes in one fitted world, advanced by one compiled call a step.

    Autoreset at the next step: a done episode is reset instead, its action ignored and its reward 0.

    Args:
        evaluator: A fitted world model.
        num_envs: Episodes side by side.
        horizon: Steps after which an episode is truncated; by default as many as the longest logged episode
            has.
        termination: A rule you know, instead of the learnt probability.
        world: Which of the fitted models.
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
        self._core = VectorCore(evaluator, num_envs, horizon=horizon, termination=termination, world=world)
        self.single_observation_space = self._core.observation_space
        self.single_action_space = self._core.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start all episodes, or those that `options["reset_mask"]` marks."""
        super().reset(seed=seed)
        options = options or {}
        reset_mask = np.asarray(options.get("reset_mask", np.ones(self.num_envs, bool)))
        if reset_mask.shape != (self.num_envs,) or reset_mask.dtype != bool:
            raise InputError(f"options['reset_mask']: expected {self.num_envs} values, each True or False")
        return self._core.reset(reset_mask, options, generator=self.np_random), {}

    def step(self, actions: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        stepped = ~self._core.done
        result = self._core.step(_check_shape(actions, self.action_space), generator=self.np_random)
        info = {
            "termination_probability": result.termination_probability,
            "_termination_probability": stepped,
        }
        return result.observation, result.reward, result.terminated, result.truncated, info


def _check_shape(action: Any, space: spaces.Space) -> np.ndarray:
    action = np.asarray(action)
    if action.shape != space.shape:
        raise InputError(f"action: it has shape {action.shape}, expected {space.shape}")
    return action
