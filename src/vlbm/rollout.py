"""rollout(): all policies meet the learnt world at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from jaxtyping import Bool, Float, PRNGKeyArray

from vlbm.compilation import keep_programs
from vlbm.episodes import Episodes, from_padded
from vlbm.errors import InputError
from vlbm.models.base import World
from vlbm.policies.base import Policy, TracedPolicy
from vlbm.policies.crowd import Actions
from vlbm.progress import Progress, silent
from vlbm.unrolling import HostRun, Trace, TracedRun

# Imagined steps that must be saved for episodes to be left behind: programs of another shape are compiled.
WORTH = 1_000_000

# Says of many raw observations which of them end an episode.
Termination = Callable[[Float[np.ndarray, "batch obs"]], Bool[np.ndarray, " batch"]]


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
    `termination` ends episodes by a rule the user knows, beside the learnt one. Episodes that have ended are
    left behind when that halves what is under way.
    """
    keep_programs()
    traced = {name: policy for name, policy in policies.items() if isinstance(policy, TracedPolicy)}
    foreign = {name: policy for name, policy in policies.items() if name not in traced}
    imagined: dict[str, Episodes] = {}
    for group, unroll in ((traced, TracedRun), (foreign, HostRun)):
        if not group:
            continue
        run = unroll(world, group, start=start, episodes=episodes, horizon=horizon, actions=actions, key=key)
        traces, ended = [], np.zeros((len(group), episodes), bool)
        with progress.task(total=horizon) as report:
            for begin in range(0, horizon, run.chunk):
                steps = min(run.chunk, horizon - begin)
                trace = run.advance(begin, steps)
                if termination is not None:
                    trace = trace._replace(ended=trace.ended | verdict(termination, trace.observation))
                if run.seats is not None:
                    trace = trace.among(len(group), episodes, run.seating)
                _check_finite(group, trace, ended, begin)
                traces.append(trace)
                ended |= trace.ended.any(axis=0)
                report(begin + steps, None)
                if ended.all():
                    break
                chosen = run.seating.remaining(ended, lots=run.lots)
                now, after = run.seating.episode.size, chosen.episode.size
                if 2 * after <= now and (now - after) * (horizon - begin - steps) >= WORTH:
                    run.keep(chosen)
        whole = Trace(*(np.concatenate(parts) for parts in zip(*traces, strict=True)))
        imagined.update(_as_episodes(group, run.first, whole, world.choices))
    return {name: imagined[name] for name in policies}


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
