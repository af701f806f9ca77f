"""Actions of policies at many observations, computed once before a training loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from vlbm.parallel import count_shards, map_shards
from vlbm.policies.base import Policy, TracedPolicy, has_log_prob
from vlbm.policies.checks import check_actions
from vlbm.policies.stacked import Actions, StackedPolicies

CHUNK = 4096  # observations per call, so that activations of wide networks fit in the CPU cache
BUDGET = 1 << 31  # bytes; the number of draws is reduced to fit


def tabulate_actions(
    policies: Mapping[str, Policy],
    observation: Float[np.ndarray, "rows obs"],
    *,
    action_size: int,
    discrete: bool,
    actions: Actions,
    draws: int,
    key: PRNGKeyArray,
) -> Float[np.ndarray, "draws rows policies act"]:
    """Every policy's action vector at every observation, or its probabilities of every discrete action.

    Probabilities are exact for policies with `log_prob`; otherwise they are the one-hot vector of a sampled
    action. There is a single draw if nothing is sampled. All policies share common random numbers.
    """
    sampled = actions == "sample"
    exact = [sampled and discrete and has_log_prob(policy) for policy in policies.values()]
    fitting = BUDGET // (4 * len(observation) * len(policies) * action_size)
    count = max(min(draws, fitting), 1) if sampled and not all(exact) else 1
    table = np.empty((count, len(observation), len(policies), action_size), np.float32)
    members = list(policies.items())
    traced = [isinstance(policy, TracedPolicy) for policy in policies.values()]
    for known in (False, True):
        chosen = [index for index in range(len(members)) if traced[index] and exact[index] is known]
        if chosen:
            names, stacked = [members[index][0] for index in chosen], [members[index][1] for index in chosen]
            for draw in range(count):
                drawn = _call_traced(
                    stacked, observation, "probability" if known else actions, action_size, key, draw
                )
                table[draw][:, chosen] = _check_all(names, drawn, action_size, discrete and not known)
    for index, (name, policy) in enumerate(members):
        if not traced[index]:
            for draw in range(count):
                raw = _call_host(policy, observation, actions, exact[index], action_size, key, draw)
                checked = check_actions(
                    name,
                    raw,
                    batch=len(observation),
                    action_size=action_size,
                    discrete=discrete and not exact[index],
                )
                table[draw, :, index] = _as_vectors(checked, action_size)
    return table


def _call_traced(
    policies: Sequence[Any],
    observation: Float[np.ndarray, "rows obs"],
    what: str,
    action_size: int,
    key: PRNGKeyArray,
    draw: int,
) -> np.ndarray:
    stacked, rows = StackedPolicies.of(policies), len(observation)
    size = min(CHUNK, rows)
    shards = count_shards(size)
    parts = []
    for number, first in enumerate(range(0, rows, size)):
        # The last chunk is padded with its last row, so that one program is compiled.
        seen = observation[np.minimum(np.arange(first, first + size), rows - 1)]
        keys = jax.random.split(jax.random.fold_in(jax.random.fold_in(key, draw), number), shards)
        parts.append(
            np.asarray(_act(stacked, jnp.asarray(seen, jnp.float32), keys, what, action_size, shards))
        )
    return np.concatenate(parts)[:rows]


@eqx.filter_jit
def _act(
    stacked: StackedPolicies, observation: Array, keys: PRNGKeyArray, what: str, action_size: int, shards: int
) -> Float[Array, "batch policies *act"]:
    count = sum(map(len, stacked.members))

    def act(stacked: StackedPolicies, batch: tuple[Array, PRNGKeyArray]) -> Array:
        observation, keys = batch
        if what == "probability":
            found = _probabilities(stacked, observation, action_size)
        else:
            seen = jnp.broadcast_to(observation, (count, *observation.shape))
            found = stacked.act(seen, actions="mean" if what == "mean" else "sample", key=keys[0])
        return jnp.moveaxis(found, 0, 1)

    return map_shards(act, shards)(stacked, (observation, keys))


def _probabilities(
    stacked: StackedPolicies, observation: Array, actions: int
) -> Float[Array, "policies batch act"]:
    def of(policy: TracedPolicy) -> Array:
        ids = jnp.broadcast_to(jnp.arange(actions)[:, None], (actions, len(observation)))
        return jnp.exp(jax.vmap(lambda action: policy.log_prob(observation, action))(ids)).T

    found = jnp.concatenate([jax.vmap(of)(group) for group in stacked.groups])
    return found[np.argsort(np.concatenate([np.array(indices) for indices in stacked.members]))]


def _call_host(
    policy: Any,
    observation: np.ndarray,
    actions: Actions,
    exact: bool,
    action_size: int,
    key: PRNGKeyArray,
    draw: int,
) -> Any:
    if exact:
        ids = (np.full(len(observation), action) for action in range(action_size))
        log = [np.asarray(policy.log_prob(observation, action), np.float64) for action in ids]
        return np.exp(np.stack(log, axis=-1))
    if actions == "mean":
        return policy.mean(observation)
    return policy.sample(observation, key=jax.random.fold_in(key, draw))


def _check_all(names: Sequence[str], drawn: np.ndarray, action_size: int, discrete: bool) -> np.ndarray:
    checked = [
        check_actions(name, drawn[:, index], batch=len(drawn), action_size=action_size, discrete=discrete)
        for index, name in enumerate(names)
    ]
    return np.stack([_as_vectors(part, action_size) for part in checked], axis=1)


def _as_vectors(action: np.ndarray, action_size: int) -> Float[np.ndarray, "rows act"]:
    return np.eye(action_size, dtype=np.float32)[action] if action.ndim == 1 else action
