"""DOPE's target policies, adapted to the observations of the data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import equinox as eqx
import jax.numpy as jnp

from vlbm.errors import InputError
from vlbm.policies.dope import read_dope
from vlbm.policies.mlp import Layer, MLPPolicy
from vlbm.progress import Progress, silent
from vlbm.suites.dope.catalogue import Problem, Remote
from vlbm.suites.dope.paths import SearchPath


def load_targets(
    problem: Problem,
    search_path: SearchPath,
    *,
    observations: int,
    download: bool = False,
    progress: Progress = silent,
) -> dict[str, MLPPolicy]:
    """The 11 policies by name, taking that many observations."""
    return load_named(
        problem,
        problem.policies,
        search_path,
        observations=observations,
        download=download,
        progress=progress,
    )


def load_named(
    problem: Problem,
    remotes: Mapping[str, Remote],
    search_path: SearchPath,
    *,
    observations: int,
    download: bool = False,
    progress: Progress = silent,
) -> dict[str, MLPPolicy]:
    """Some of the environment's policies."""
    policies = {}
    for name, remote in remotes.items():
        path = search_path.get(remote, download=download, readable=read_dope, progress=progress)
        policies[name] = _adapt(read_dope(path), path, problem, observations)
    return policies


def drop_last_inputs(policy: MLPPolicy, size: int) -> MLPPolicy:
    """The policy that sees `size` observations where this one sees those followed by zeros.

    Dropping the weights of zero inputs is equivalent to padding observations with zeros, and cheaper.
    """
    first = policy.hidden[0]
    return eqx.tree_at(lambda tree: tree.hidden[0], policy, Layer(first.weight[:, :size], first.bias))


def _adapt(policy: MLPPolicy, path: Path, problem: Problem, observations: int) -> MLPPolicy:
    if (policy.observation_size, policy.action_size) != (problem.policy_inputs, problem.actions):
        raise InputError(
            f"{path}: takes {policy.observation_size} observations and gives {policy.action_size} numbers; "
            f"DOPE's policies for {problem.environment} take {problem.policy_inputs} and give "
            f"{problem.actions}: fetch it again"
        )
    if observations < problem.policy_inputs:
        policy = drop_last_inputs(policy, observations)
    if problem.family == "adroit":
        # The simulator clips actions; here the policy does, since a learnt world will not.
        bound = jnp.ones_like(policy.action_high)
        policy = replace(policy, action_low=-bound, action_high=bound)
    return policy
