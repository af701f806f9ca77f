"""simulate(): let a policy act in a real Gymnasium environment and log what happens."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from vlbm.data.episodes import Episodes
from vlbm.errors import require
from vlbm.policies.base import Policy, TracedPolicy, has_log_prob
from vlbm.progress import Progress, silent

LANES = 20  # environments stepped together, so that the policy is called on a batch
Act = Callable[[np.ndarray, Any], np.ndarray]


@dataclass
class Episode:
    """One episode while it is being recorded."""

    number: int
    observations: list[np.ndarray]
    actions: list[np.ndarray] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    terminated: bool = False


def simulate(
    environment: str,
    policy: Policy,
    *,
    seed: int,
    horizon: int,
    episodes: int | None = None,
    steps: int | None = None,
    actions: Literal["mean", "sample"] = "sample",
    options: Mapping[str, Any] | None = None,
    progress: Progress = silent,
) -> Episodes:
    """Whole episodes: as many as asked for, or until they have `steps` steps together.

    Episode i has its own random stream, from the seed and i. Episodes are kept in that order, so that short
    ones are not preferred.
    """
    if (episodes is None) == (steps is None):
        raise ValueError("give either the number of episodes or the number of steps")
    gymnasium = require("gymnasium", extra="gym", purpose="simulating")
    act = _make_act(policy, actions)
    started: list[Episode] = []
    lanes: list[Any] = []
    running: list[Episode | None] = [None] * LANES
    base, taken, finished = jax.random.key(seed), 0, 0
    with progress.task(total=steps or episodes or 0, title=f"simulating {environment}") as report:
        while True:
            for lane in range(LANES):
                # An episode that still runs counts with the steps it has.
                wanted = taken < steps if episodes is None else len(started) < episodes  # type: ignore[operator]
                if running[lane] is None and wanted:
                    if lane == len(lanes):
                        lanes.append(_make_environment(gymnasium, environment, horizon, options))
                    first, _ = lanes[lane].reset(seed=_episode_seed(seed, len(started)))
                    episode = Episode(len(started), [np.asarray(first, np.float32)])
                    running[lane] = episode
                    started.append(episode)
            if not any(running):
                break
            observation, keys = _stack_observations(running, base)
            chosen = act(observation, keys)
            for lane, current in enumerate(running):
                if current is None:
                    continue
                following, reward, terminated, truncated, _ = lanes[lane].step(chosen[lane])
                current.actions.append(chosen[lane])
                current.rewards.append(float(reward))
                current.observations.append(np.asarray(following, np.float32))
                current.terminated = bool(terminated)
                taken += 1
                if terminated or truncated:
                    running[lane] = None
                    finished += 1
            report(finished if steps is None else min(taken, steps), None)
    n_actions = getattr(lanes[0].action_space, "n", None)
    for lane in lanes:
        lane.close()
    return _add_log_prob(_to_episodes(started, steps, n_actions), policy if actions == "sample" else None)


def _make_environment(
    gymnasium: Any, environment: str, horizon: int, options: Mapping[str, Any] | None
) -> Any:
    with _silence_mujoco(), warnings.catch_warnings():
        # Gymnasium advises newer versions of environments; published returns belong to the older ones.
        warnings.filterwarnings("ignore", message=".*out of date")
        return gymnasium.make(
            environment, max_episode_steps=horizon, disable_env_checker=True, **(options or {})
        )


@contextmanager
def _silence_mujoco() -> Iterator[None]:
    """Suppress MuJoCo's warnings about old model files."""
    try:
        import mujoco
    except ImportError:
        yield
        return
    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda message: None)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)


def _episode_seed(seed: int, number: int) -> int:
    return int(np.random.SeedSequence([seed, number]).generate_state(1)[0])


def _stack_observations(running: list[Episode | None], base: Any) -> tuple[np.ndarray, Any]:
    """Observations of all lanes, zeros for idle ones, and the episode and step of each."""
    shape = next(episode.observations[0].shape for episode in running if episode is not None)
    observation = np.zeros((len(running), *shape), np.float32)
    moment = np.zeros((len(running), 2), np.uint32)
    for lane, episode in enumerate(running):
        if episode is not None:
            observation[lane] = episode.observations[-1]
            moment[lane] = episode.number, len(episode.rewards)
    return observation, (base, moment)


def _make_act(policy: Policy, actions: str) -> Act:
    if isinstance(policy, TracedPolicy):
        return lambda observation, keys: np.asarray(
            _act_batch(policy, observation, *keys, sampled=actions == "sample")
        )
    if actions == "mean":
        return lambda observation, keys: np.asarray(policy.mean(observation))
    return lambda observation, keys: np.asarray(
        policy.sample(observation, key=jax.random.fold_in(keys[0], int(keys[1].sum())))
    )


# Compiled once for all policies of one shape.
@eqx.filter_jit
def _act_batch(policy: TracedPolicy, observation: Any, base: Any, moment: Any, *, sampled: bool) -> jax.Array:
    if not sampled:
        return policy.mean(observation)

    def one(observation: jax.Array, moment: jax.Array) -> jax.Array:
        key = jax.random.fold_in(jax.random.fold_in(base, moment[0]), moment[1])
        return policy.sample(observation[None], key=key)[0]

    return jax.vmap(one)(observation, moment)


def _to_episodes(started: list[Episode], steps: int | None, n_actions: int | None) -> Episodes:
    """The first episodes that together have `steps` steps, or all of them."""
    length = np.array([len(episode.rewards) for episode in started])
    count = len(started) if steps is None else int(np.searchsorted(np.cumsum(length), steps)) + 1
    kept = started[:count]
    return Episodes(
        observation=np.concatenate([episode.observations for episode in kept]),
        action=np.concatenate([episode.actions for episode in kept]),
        reward=np.concatenate([episode.rewards for episode in kept]).astype(np.float32),
        length=length[:count],
        terminated=np.array([episode.terminated for episode in kept]),
        n_actions=None if n_actions is None else int(n_actions),
    )


def _add_log_prob(episodes: Episodes, policy: Policy | None) -> Episodes:
    if policy is None or not has_log_prob(policy):
        return episodes
    observation = episodes.observation[episodes.observation_before]
    action = episodes.action
    log_prob = policy.log_prob(jnp.asarray(observation), jnp.asarray(action))  # type: ignore[attr-defined]
    return replace(episodes, log_prob=np.asarray(log_prob, np.float32))
