"""rollout(): all policies meet the learnt world at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, Shaped

from vlbm.compilation import keep_programs
from vlbm.episodes import Episodes, from_padded
from vlbm.errors import InputError
from vlbm.models.base import World
from vlbm.policies.base import Policy, TracedPolicy
from vlbm.policies.checks import check_actions
from vlbm.progress import Progress, silent

Actions = Literal["mean", "sample"]
# Says of many raw observations which of them end an episode.
Termination = Callable[[Float[np.ndarray, "batch obs"]], Bool[np.ndarray, " batch"]]

CHUNK = 50  # steps per compiled call: progress, early stopping and Ctrl-C happen in between


class Trace(NamedTuple):
    """What a stretch of steps left behind, on the device or on the host; time is the leading axis."""

    action: Shaped[Any, "steps policies episodes *act"]
    observation: Float[Any, "steps policies episodes obs"]  # after the action
    reward: Float[Any, "steps policies episodes"]
    ended: Bool[Any, "steps policies episodes"]


class Crowd(eqx.Module):
    """Policies stacked by shape, so that those of one shape act in one product."""

    groups: tuple[TracedPolicy, ...]
    members: tuple[tuple[int, ...], ...] = eqx.field(static=True)

    @classmethod
    def of(cls, policies: Sequence[TracedPolicy]) -> Crowd:
        shapes: dict[Any, list[int]] = {}
        for index, policy in enumerate(policies):
            leaves, structure = jax.tree.flatten(policy)
            shapes.setdefault((structure, *(np.shape(leaf) for leaf in leaves)), []).append(index)
        members = tuple(tuple(indices) for indices in shapes.values())
        groups = tuple(
            jax.tree.map(lambda *leaves: jnp.stack(leaves), *(policies[index] for index in indices))
            for indices in members
        )
        return cls(groups, members)

    def act(
        self, observation: Float[Array, "policies episodes obs"], *, actions: Actions, key: PRNGKeyArray
    ) -> Shaped[Array, "policies episodes *act"]:
        parts = []
        for group, indices in zip(self.groups, self.members, strict=True):
            seen = observation[np.array(indices)]
            if actions == "mean":
                parts.append(jax.vmap(lambda policy, seen: policy.mean(seen))(group, seen))
            else:
                # One key for all: policies differ by what they do, not by their luck.
                parts.append(jax.vmap(lambda policy, seen: policy.sample(seen, key=key))(group, seen))
        order = np.argsort(np.concatenate([np.array(indices) for indices in self.members]))
        return jnp.concatenate(parts)[order]


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

    `start` holds one initial observation per episode; None lets the world imagine its own. Policies
    written in JAX run inside the compiled loop; others are called once a step with the whole batch.
    `termination` ends episodes by a rule the user knows, beside the learnt one.
    """
    keep_programs()
    traced = {name: policy for name, policy in policies.items() if isinstance(policy, TracedPolicy)}
    foreign = {name: policy for name, policy in policies.items() if name not in traced}
    begin_key, step_key = jax.random.split(key)
    imagined: dict[str, Episodes] = {}
    for group in (traced, foreign):
        if not group:
            continue
        batch = (len(group), episodes)
        if start is None:
            state, observation = _begin_from_prior(world, batch, begin_key)
        else:
            observation = jnp.broadcast_to(jnp.asarray(start, jnp.float32), (*batch, start.shape[-1]))
            state = _begin(world, observation, begin_key)
        advance = (
            _traced_stretch(world, group, actions)
            if group is traced
            else _host_stretch(world, group, actions)
        )
        traces, ended = [], np.zeros(batch, bool)
        first = np.asarray(observation)
        with progress.task(total=horizon) as report:
            for begin in range(0, horizon, CHUNK):
                steps = min(CHUNK, horizon - begin)
                state, observation, trace = advance(state, observation, begin, steps, step_key)
                trace = Trace(*(np.asarray(part)[:steps] for part in trace))
                if termination is not None:
                    trace = trace._replace(ended=trace.ended | verdict(termination, trace.observation))
                _check_finite(group, trace, ended, begin)
                traces.append(trace)
                ended |= trace.ended.any(axis=0)
                report(begin + steps, None)
                if ended.all():
                    break
        whole = Trace(*(np.concatenate(parts) for parts in zip(*traces, strict=True)))
        imagined.update(_as_episodes(group, first, whole, world.choices))
    return {name: imagined[name] for name in policies}


@eqx.filter_jit
def _begin(world: World, observation: Array, key: PRNGKeyArray) -> Any:
    return world.begin(observation, key=key)


@eqx.filter_jit
def _begin_from_prior(world: World, batch: tuple[int, ...], key: PRNGKeyArray) -> tuple[Any, Array]:
    return world.begin_from_prior(batch, key=key)


def _traced_stretch(world: World, policies: Mapping[str, Policy], actions: Actions):
    crowd = Crowd.of([policy for policy in policies.values() if isinstance(policy, TracedPolicy)])

    # Always a whole chunk, so that there is one program; what is beyond the horizon is cut off later.
    def advance(state: Any, observation: Array, begin: int, steps: int, key: PRNGKeyArray):
        return _compiled_stretch(world, crowd, state, observation, jnp.asarray(begin), key, actions)

    return advance


@eqx.filter_jit
def _compiled_stretch(
    world: World,
    crowd: Crowd,
    state: Any,
    observation: Float[Array, "policies episodes obs"],
    begin: Int[Array, ""],
    key: PRNGKeyArray,
    actions: Actions,
) -> tuple[Any, Array, Trace]:
    def advance(carry: tuple[Any, Array], time: Array):
        state, observation = carry
        action_key, world_key, ending_key = _keys(key, time)
        action = crowd.act(observation, actions=actions, key=action_key)
        state, outcome = world.step(state, action, key=world_key)
        ended = jax.random.uniform(ending_key, observation.shape[1:2]) < outcome.ending
        return (state, outcome.observation), Trace(action, outcome.observation, outcome.reward, ended)

    times = begin + jnp.arange(CHUNK)
    (state, observation), trace = jax.lax.scan(advance, (state, observation), times)
    return state, observation, trace


def _host_stretch(world: World, policies: Mapping[str, Policy], actions: Actions):
    """The same stretch for policies outside JAX: one call per policy and step, then one world step."""

    def advance(state: Any, observation: Array, begin: int, steps: int, key: PRNGKeyArray):
        taken = []
        for time in range(begin, begin + steps):
            seen = np.asarray(observation)
            action_key, _, _ = _keys(key, jnp.asarray(time))
            action = np.stack(
                [
                    _act(name, policy, part, world, actions, action_key)
                    for (name, policy), part in zip(policies.items(), seen, strict=True)
                ]
            )
            state, outcome, ended = _compiled_step(world, state, jnp.asarray(action), jnp.asarray(time), key)
            observation = outcome.observation
            taken.append(Trace(action, *(np.asarray(part) for part in (observation, outcome.reward, ended))))
        return state, observation, Trace(*(np.stack(parts) for parts in zip(*taken, strict=True)))

    return advance


@eqx.filter_jit
def _compiled_step(world: World, state: Any, action: Array, time: Array, key: PRNGKeyArray):
    _, world_key, ending_key = _keys(key, time)
    state, outcome = world.step(state, action, key=world_key)
    ended = jax.random.uniform(ending_key, action.shape[1:2]) < outcome.ending
    return state, outcome, ended


def _act(
    name: str, policy: Policy, seen: np.ndarray, world: World, actions: Actions, key: PRNGKeyArray
) -> np.ndarray:
    return check_actions(
        name,
        policy.mean(seen) if actions == "mean" else policy.sample(seen, key=key),
        batch=len(seen),
        action_size=world.action.mean.shape[0],
        discrete=world.choices is not None,
    )


def _keys(key: PRNGKeyArray, time: Array) -> tuple[PRNGKeyArray, PRNGKeyArray, PRNGKeyArray]:
    action_key, world_key, ending_key = jax.random.split(jax.random.fold_in(key, time), 3)
    return action_key, world_key, ending_key


def verdict(
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


def _check_finite(policies: Mapping[str, Policy], trace: Trace, ended: np.ndarray, begin: int) -> None:
    """A policy or model that leaves the numbers is reported by name, not averaged into the result."""
    alive = ~ended & ~(np.cumsum(trace.ended, axis=0) - trace.ended > 0)
    faults = []
    # In the order in which a step makes them: what comes first is the cause, the rest its consequence.
    for order, (what, values) in enumerate(
        (("actions", trace.action), ("rewards", trace.reward), ("observations", trace.observation))
    ):
        broken = ~np.isfinite(values).reshape(*alive.shape, -1).all(axis=-1) & alive
        if broken.any():
            step, index, _ = np.argwhere(broken)[0]
            faults.append((int(step), order, what, list(policies)[index]))
    if not faults:
        return
    step, _, what, name = min(faults)
    blame = (
        f"policy '{name}' returned {what} that are not finite"
        if what == "actions"
        else f"the model imagined {what} that are not finite under policy '{name}'"
    )
    raise InputError(f"{blame}, at step {begin + step} of the roll-out")


def _as_episodes(
    policies: Mapping[str, Policy], first: np.ndarray, trace: Trace, choices: int | None
) -> dict[str, Episodes]:
    ended = trace.ended.any(axis=0)
    length = np.where(ended, trace.ended.argmax(axis=0) + 1, len(trace.reward))
    return {
        name: from_padded(
            observation=np.concatenate(
                [first[index][:, None], trace.observation[:, index].swapaxes(0, 1)], axis=1
            ),
            action=trace.action[:, index].swapaxes(0, 1),
            reward=trace.reward[:, index].T,
            length=length[index],
            terminated=ended[index],
            choices=choices,
        )
        for index, name in enumerate(policies)
    }
