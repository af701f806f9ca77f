"""rollout(): imagined episodes of policies in a learnt world."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, Shaped

from vlbm.compilation import enable_compilation_cache
from vlbm.data.episodes import Episodes, from_padded
from vlbm.errors import InputError
from vlbm.parallel import count_shards, map_shards
from vlbm.policies.base import Policy, TracedPolicy
from vlbm.policies.checks import check_actions
from vlbm.policies.stacked import Actions, StackedPolicies, act_once
from vlbm.progress import Progress, silent
from vlbm.worlds.base import Outcome, World

CHUNK = 100  # steps per compiled call: progress, early stopping and Ctrl-C happen in between
FEW_EPISODES = 64  # up to so many, one device and long chunks are faster
LONG_CHUNK = 1000  # steps per compiled call for few episodes
HOST_STREAM = 2**32 - 1  # random stream of policies outside JAX; no episode has this number

# A known termination rule: which of many raw observations are terminal.
Termination = Callable[[Float[np.ndarray, "batch obs"]], Bool[np.ndarray, " batch"]]


class Trace(NamedTuple):
    """The trajectories of a chunk of steps."""

    action: Shaped[Any, "episodes policies steps *act"]
    observation: Float[Any, "episodes policies steps obs"]  # after the action
    reward: Float[Any, "episodes policies steps"]
    terminated: Bool[Any, "episodes policies steps"]


class RolloutState(NamedTuple):
    """State of running episodes, with axes episodes, policies."""

    number: Int[Array, " episodes"]
    state: Any
    observation: Float[Array, "episodes policies obs"]


def rollout(
    world: World,
    policies: Mapping[str, Policy],
    *,
    start: Float[np.ndarray, "episodes obs"] | None,
    episodes: int,
    horizon: int,
    actions: Actions = "mean",
    termination: Termination | None = None,
    key: PRNGKeyArray,
    progress: Progress = silent,
) -> dict[str, Episodes]:
    """Imagined episodes of every policy, in the order given.

    `start` holds one initial observation per episode; None lets the world imagine its own. Policies written
    in JAX run inside the compiled loop; others are called once a step with the whole batch. `termination`
    ends episodes by a rule the user knows, beside the learnt one.

    Common random numbers: the noise of a step depends on the episode's number and the time alone. This lowers
    the variance of comparisons, and an estimate depends neither on the other policies nor on the devices.
    """
    enable_compilation_cache()
    traced = {name: policy for name, policy in policies.items() if isinstance(policy, TracedPolicy)}
    host = {name: policy for name, policy in policies.items() if name not in traced}
    stacked = StackedPolicies.of(list(traced.values()))
    groups: list[tuple[list[str], Any]] = [
        ([list(traced)[index] for index in members], group)
        for group, members in zip(stacked.groups, stacked.members, strict=True)
    ]
    if host:
        groups.append((list(host), host))
    starts = None if start is None else jnp.asarray(start, jnp.float32)
    imagined: dict[str, Episodes] = {}
    for names, group in groups:
        running = _begin(world, starts, key, episodes=episodes, policies=len(names))
        first = np.asarray(running.observation)
        few = first[..., 0].size <= FEW_EPISODES
        steps = _chunk_length(horizon, LONG_CHUNK if few else CHUNK)
        shards = 1 if few else count_shards(episodes)
        traces, time, terminated = [], 0, np.zeros(first.shape[:2], bool)
        with progress.task(total=horizon) as report:
            while time < horizon and not terminated.all():
                if isinstance(group, TracedPolicy):
                    fixed = (world, group, key, jnp.int32(time))
                    running, trace = _advance(fixed, running, steps=steps, actions=actions, shards=shards)
                else:
                    # After termination observations may not be finite; policies get the first one instead.
                    observation = np.where(terminated[..., None], first, running.observation)
                    action = _call_host_policies(world, group, observation, actions, key, time)
                    running, trace = _advance_host(world, running, jnp.asarray(action), key, jnp.int32(time))
                trace = Trace(*(np.asarray(part)[:, :, : horizon - time] for part in trace))
                if termination is not None:
                    by_rule = apply_termination(termination, trace.observation)
                    trace = trace._replace(terminated=trace.terminated | by_rule)
                _check_finite(names, trace, terminated, time)
                traces.append(trace)
                terminated |= trace.terminated.any(axis=2)
                time += trace.reward.shape[2]
                report(time, None)
        whole = Trace(*(np.concatenate(parts, axis=2) for parts in zip(*traces, strict=True)))
        imagined.update(_to_episodes(names, first, whole, world.n_actions))
    return {name: imagined[name] for name in policies}


def apply_termination(
    termination: Termination, observation: Float[np.ndarray, "*batch obs"]
) -> Bool[np.ndarray, "*batch"]:
    """Which observations end an episode by the user's rule."""
    flat = observation.reshape(-1, observation.shape[-1])
    ends = np.asarray(termination(flat))
    if ends.shape != flat.shape[:1]:
        raise InputError(
            f"termination: for {len(flat)} observations it returned an array of shape {ends.shape}; "
            "it must return one True or False for each"
        )
    return ends.astype(bool).reshape(observation.shape[:-1])


def _chunk_length(horizon: int, most: int) -> int:
    """The length of the fewest equal chunks of at most `most` steps that cover the horizon."""
    return -(-horizon // -(-horizon // most))


@eqx.filter_jit
def _begin(
    world: World,
    start: Float[Array, "episodes obs"] | None,
    key: PRNGKeyArray,
    *,
    episodes: int,
    policies: int,
) -> RolloutState:
    """All policies share the initial state of an episode."""

    def one(number: Array, observation: Array | None) -> tuple[Any, Array]:
        own = jax.random.fold_in(jax.random.fold_in(key, number), 0)
        if observation is None:
            return world.reset_from_prior(own)
        return world.reset(observation, world.draw_noise(own)), observation

    number = jnp.arange(episodes)
    running = jax.vmap(one)(number, start)
    return RolloutState(
        number, *jax.tree.map(lambda leaf: jnp.repeat(leaf[:, None], policies, axis=1), running)
    )


def _draw_step_keys(key: PRNGKeyArray, number: Array, time: Array) -> tuple[PRNGKeyArray, ...]:
    """Keys for the action, the world and termination; `_begin` uses index 0 for the reset."""
    return tuple(jax.random.split(jax.random.fold_in(jax.random.fold_in(key, number), time + 1), 3))


def _step(
    world: World, state: Any, action: Array, world_key: PRNGKeyArray, termination_key: PRNGKeyArray
) -> tuple[Any, Outcome, Bool[Array, ""]]:
    state, outcome = world.step(state, action, world.draw_noise(world_key))
    return state, outcome, jax.random.uniform(termination_key) < outcome.termination


@eqx.filter_jit
def _advance(
    fixed: Any, running: RolloutState, *, steps: int, actions: Actions, shards: int
) -> tuple[RolloutState, Trace]:
    """The next steps of all episodes of all policies."""

    def episode(fixed: Any, policy: TracedPolicy, number: Array, state: Any, observation: Array) -> Any:
        world, key, time = fixed

        def step(carry: tuple[Any, Array], time: Array) -> tuple[tuple[Any, Array], Trace]:
            state, observation = carry
            action_key, *keys = _draw_step_keys(key, number, time)
            action = act_once(policy, observation, actions, action_key)
            state, outcome, terminated = _step(world, state, action, *keys)
            return (state, outcome.observation), Trace(
                action, outcome.observation, outcome.reward, terminated
            )

        return jax.lax.scan(step, (state, observation), time + jnp.arange(steps))

    def advance_shard(fixed: Any, running: RolloutState) -> tuple[RolloutState, Trace]:
        world, policies, key, time = fixed
        of_policy = jax.vmap(partial(episode, (world, key, time)), in_axes=(0, None, 0, 0))
        of_episode = jax.vmap(partial(of_policy, policies))
        (state, observation), trace = of_episode(*running)
        return RolloutState(running.number, state, observation), trace

    return map_shards(advance_shard, shards)(fixed, running)


def _call_host_policies(
    world: World,
    policies: Mapping[str, Policy],
    observation: Float[np.ndarray, "episodes policies obs"],
    actions: Actions,
    key: PRNGKeyArray,
    time: int,
) -> Shaped[np.ndarray, "episodes policies *act"]:
    """Actions of policies outside JAX: each is called once, with all its episodes."""
    step_key = jax.random.fold_in(jax.random.fold_in(key, HOST_STREAM), time)
    taken = []
    for index, (name, policy) in enumerate(policies.items()):
        own = observation[:, index]
        action = policy.mean(own) if actions == "mean" else policy.sample(own, key=step_key)
        size, discrete = world.action.mean.shape[0], world.n_actions is not None
        taken.append(check_actions(name, action, batch=len(own), action_size=size, discrete=discrete))
    return np.stack(taken, axis=1)


@eqx.filter_jit
def _advance_host(
    world: World, running: RolloutState, action: Array, key: PRNGKeyArray, time: Array
) -> tuple[RolloutState, Trace]:
    """The next step of all episodes with given actions."""

    def episode(number: Array, state: Any, action: Array) -> Any:
        _, *keys = _draw_step_keys(key, number, time)
        return jax.vmap(lambda state, action: _step(world, state, action, *keys))(state, action)

    state, outcome, terminated = jax.vmap(episode)(running.number, running.state, action)
    trace = Trace(action, outcome.observation, outcome.reward, terminated)
    return RolloutState(running.number, state, outcome.observation), jax.tree.map(
        lambda part: part[:, :, None], trace
    )


def _check_finite(names: list[str], trace: Trace, terminated: np.ndarray, first: int) -> None:
    """Raise on values that are not finite, naming the policy or the model."""
    earlier = np.cumsum(trace.terminated, axis=2) - trace.terminated > 0
    alive = ~terminated[:, :, None] & ~earlier
    faults = []
    # In the order in which a step computes them: the first is the cause.
    parts = (("actions", trace.action), ("rewards", trace.reward), ("observations", trace.observation))
    for order, (what, values) in enumerate(parts):
        broken = ~np.isfinite(values).reshape(*alive.shape, -1).all(axis=-1) & alive
        if broken.any():
            step, policy, _ = np.argwhere(broken.T)[0]
            faults.append((int(step), order, what, names[policy]))
    if not faults:
        return
    step, _, what, name = min(faults)
    cause = (
        f"policy '{name}' returned {what} that are not finite"
        if what == "actions"
        else f"the model imagined {what} that are not finite under policy '{name}'"
    )
    raise InputError(f"{cause}, at step {first + step} of the roll-out")


def _to_episodes(
    names: list[str], first: np.ndarray, trace: Trace, n_actions: int | None
) -> dict[str, Episodes]:
    terminated = trace.terminated.any(axis=2)
    length = np.where(terminated, trace.terminated.argmax(axis=2) + 1, trace.reward.shape[2])
    return {
        name: from_padded(
            observation=np.concatenate([first[:, index, None], trace.observation[:, index]], axis=1),
            action=trace.action[:, index],
            reward=trace.reward[:, index],
            length=length[:, index],
            terminated=terminated[:, index],
            n_actions=n_actions,
        )
        for index, name in enumerate(names)
    }
