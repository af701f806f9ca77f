"""How likely every policy was to take the logged actions."""

from __future__ import annotations

from collections.abc import Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped

from vlbm.compilation import enable_compilation_cache
from vlbm.data.episodes import Episodes
from vlbm.errors import InputError
from vlbm.estimand import Actions
from vlbm.policies.base import Policy, TracedPolicy, has_log_prob
from vlbm.policies.checks import check_actions
from vlbm.policies.stacked import StackedPolicies

CHUNK = 8192  # steps per call: what a wide network keeps of them should fit in memory


def log_probs(
    policies: Mapping[str, Policy], episodes: Episodes, *, actions: Actions = "sample"
) -> dict[str, Float[np.ndarray, " steps"]]:
    """The log-probability of every logged action under every policy, in double precision.

    Policies written in JAX are stacked by shape and evaluated in one compiled program; others one
    by one. An action that a policy never takes has minus infinity. One that acts by its mean, where
    actions are discrete, takes its likeliest action always and no other ever.
    """
    if actions == "mean" and not episodes.discrete:
        raise InputError("actions mean: a mean action has no probability where actions are continuous")
    for name, policy in policies.items() if actions == "sample" else ():
        check_has_log_prob(name, policy)
    traced = {name: policy for name, policy in policies.items() if isinstance(policy, TracedPolicy)}
    found = _stack_traced(traced, episodes, actions) if traced else {}
    observation = episodes.observation[episodes.observation_before]
    for name, policy in policies.items():
        if name in found:
            continue
        if actions == "mean":
            found[name] = _greedy_log_prob(name, policy, observation, episodes)
        else:
            found[name] = np.asarray(policy.log_prob(observation, episodes.action))  # type: ignore[attr-defined]
    return {name: _check(name, found[name], episodes) for name in policies}


def behaviour_log_probs(episodes: Episodes) -> Float[np.ndarray, " steps"]:
    """The logged log-probabilities in double precision, or an error if they cannot be any."""
    if episodes.log_prob is None:
        raise InputError("log_prob: none were logged; clone the behaviour policy first")
    logged = np.asarray(episodes.log_prob, np.float64)
    wrong = ~np.isfinite(logged)
    if wrong.any():
        raise InputError(
            f"log_prob: {_locate(episodes, wrong)} has {logged[wrong][0]:g}, but an action that was taken "
            "has a finite one; mend the log, or drop the column to have the behaviour policy cloned"
        )
    if episodes.discrete and (logged > 1e-6).any():
        raise InputError(
            f"log_prob: {_locate(episodes, logged > 1e-6)} has {logged.max():g}, but a log-probability of an "
            "action id is never above 0; if these are probabilities, give their logarithms"
        )
    return logged


def _greedy_log_prob(
    name: str, policy: Policy, observation: Float[np.ndarray, "steps obs"], episodes: Episodes
) -> Float[np.ndarray, " steps"]:
    chosen = check_actions(
        name,
        policy.mean(observation),
        batch=episodes.steps,
        action_size=episodes.action_size,
        discrete=True,
    )
    return np.where(chosen == episodes.action, 0.0, -np.inf)


def _stack_traced(
    policies: Mapping[str, TracedPolicy], episodes: Episodes, actions: Actions
) -> dict[str, Float[np.ndarray, " steps"]]:
    enable_compilation_cache()
    stacked = StackedPolicies.of(list(policies.values()))
    order = np.argsort(np.concatenate([np.array(indices) for indices in stacked.members]))
    row = episodes.observation_before
    size = min(CHUNK, episodes.steps)
    parts = []
    for first in range(0, episodes.steps, size):
        # The last chunk is filled up with its own last step: one shape, one program.
        step = np.minimum(np.arange(first, first + size), episodes.steps - 1)
        s, a = jnp.asarray(episodes.observation[row[step]]), jnp.asarray(episodes.action[step])
        parts.append(np.asarray(_evaluate_traced(stacked, s, a, actions)))
    table = np.concatenate(parts, axis=1)[order, : episodes.steps]
    return dict(zip(policies, table, strict=True))


@eqx.filter_jit
def _evaluate_traced(
    stacked: StackedPolicies,
    observation: Float[Array, "batch obs"],
    action: Shaped[Array, " batch *act"],
    actions: Actions,
) -> Float[Array, "policies batch"]:
    def evaluate(policy: TracedPolicy) -> Float[Array, " batch"]:
        if actions == "mean":
            return jnp.where(policy.mean(observation) == action, 0.0, -jnp.inf)
        return policy.log_prob(observation, action)

    return jnp.concatenate([jax.vmap(evaluate)(group) for group in stacked.groups])


def check_has_log_prob(name: str, policy: Policy) -> None:
    """Refuse a policy that importance weights cannot be made of."""
    if not has_log_prob(policy):
        raise InputError(
            f"policy '{name}' has no log-probability, which importance weights are made of; give a random "
            "policy with log_prob(observation, action), or use a method that needs none, such as vlbm or fqe"
        )


def _check(name: str, values: np.ndarray, episodes: Episodes) -> Float[np.ndarray, " steps"]:
    if values.shape != (episodes.steps,):
        raise InputError(
            f"policy '{name}' gave log-probabilities of shape {values.shape}, expected ({episodes.steps},): "
            "one per action"
        )
    values = values.astype(np.float64)
    wrong = np.isnan(values) | (values == np.inf)
    if wrong.any():
        raise InputError(
            f"policy '{name}' gave the log-probability {values[wrong][0]:g} to the action of "
            f"{_locate(episodes, wrong)}; it must be a number, or minus infinity where it never acts so"
        )
    return values


def _locate(episodes: Episodes, wrong: np.ndarray) -> str:
    step = int(np.argmax(wrong))
    return f"episode {episodes.episode_of_step[step]}, step {episodes.time[step]}"
