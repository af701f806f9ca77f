"""Look-alikes of D4RL's Gym data, from DOPE's policies, for when D4RL itself is not available."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from vlbm.data.episodes import Episodes, concatenate
from vlbm.errors import InputError, require
from vlbm.policies.base import Policy, TracedPolicy
from vlbm.progress import Progress, silent
from vlbm.suites.base import Task
from vlbm.suites.cache import checksum, data_path, load_or_make
from vlbm.suites.dope.catalogue import Problem, find_problem
from vlbm.suites.dope.loading import REGENERATED, make_task
from vlbm.suites.dope.paths import SearchPath, make_search_path
from vlbm.suites.dope.targets import load_named
from vlbm.suites.simulate import simulate


class UniformPolicy(TracedPolicy):
    """Every action in [-1, 1] is as likely as any other."""

    observations: int = eqx.field(static=True)
    actions: int = eqx.field(static=True)

    @property
    def observation_size(self) -> int:
        return self.observations

    @property
    def action_size(self) -> int:
        return self.actions

    def mean(self, observation: Float[Array, "batch obs"]) -> Float[Array, "batch act"]:
        return jnp.zeros((*observation.shape[:-1], self.actions))

    def sample(
        self, observation: Float[Array, "batch obs"], *, key: PRNGKeyArray
    ) -> Float[Array, "batch act"]:
        shape = (*observation.shape[:-1], self.actions)
        return jax.random.uniform(key, shape, minval=-1.0, maxval=1.0)

    def log_prob(
        self, observation: Float[Array, "batch obs"], action: Float[Array, "batch act"]
    ) -> Float[Array, " batch"]:
        return jnp.full(observation.shape[:-1], -self.actions * jnp.log(2.0))


def regenerate(
    name: str,
    *,
    policies: str | os.PathLike[str] | None = None,
    steps: int,
    seed: int,
    progress: Progress = silent,
) -> Episodes:
    """At least `steps` steps of whole episodes in Gymnasium's v4 environment, log-probabilities kept.

    The behaviour policies are fixed in the catalogue, the same for every environment. Of the
    snapshots 0 to 10 of DOPE's training runs, medium is 3, a third of the way; expert is 10, the last;
    medium-replay is 0 to 3 in equal parts; random is uniform noise. Actions are sampled. Unlike in
    D4RL, the behaviour policies are target policies themselves, which makes such data easier; every task
    made of them is `regenerated`.
    """
    facts = find_problem(name)
    return _simulate_parts(facts, make_search_path(policies), steps=steps, seed=seed, progress=progress)


def load_regenerated(
    name: str,
    *,
    policies: str | os.PathLike[str] | None = None,
    steps: int,
    seed: int,
    progress: Progress = silent,
) -> Episodes:
    """The same, kept in the user's cache and made only once for the same policies and simulator."""
    facts, search_path = find_problem(name), make_search_path(policies)
    recipe = _make_recipe(facts, search_path, steps, seed)
    return load_or_make(
        data_path(facts.name, steps=steps, seed=seed),
        recipe,
        lambda: _simulate_parts(facts, search_path, steps=steps, seed=seed, progress=progress),
    )


def load_regenerated_task(
    name: str,
    *,
    policies: str | os.PathLike[str] | None = None,
    download: bool = False,
    steps: int,
    seed: int,
    progress: Progress = silent,
) -> Task:
    """The whole task with simulated data."""
    episodes = load_regenerated(name, policies=policies, steps=steps, seed=seed, progress=progress)
    return make_task(name, episodes, policies=policies, download=download, progress=progress)


def _simulate_parts(
    facts: Problem, search_path: SearchPath, *, steps: int, seed: int, progress: Progress
) -> Episodes:
    if steps < 1:
        raise InputError(f"steps={steps}: give at least 1")
    acting = _load_behaviour(facts, search_path)
    share = -(-steps // len(acting))
    parts = [
        simulate(
            _require_simulator(facts),
            policy,
            seed=_derive_seed(facts.name, seed, number),
            horizon=facts.horizon,
            steps=share,
            actions="sample",
            progress=progress,
        )
        for number, policy in enumerate(acting.values())
    ]
    who = ", ".join(acting)
    note = f"{REGENERATED}: simulated in {facts.simulator} by {who}; not D4RL's data"
    return replace(concatenate(parts), notes=(note,))


def _load_behaviour(facts: Problem, search_path: SearchPath) -> dict[str, Policy]:
    """The behaviour policies by name."""
    _require_simulator(facts)
    if not facts.behaviour:
        return {"uniform noise": UniformPolicy(facts.observations, facts.actions)}
    remotes = {policy: facts.policies[policy] for policy in facts.behaviour}
    return {**load_named(facts, remotes, search_path, observations=facts.observations)}


def _require_simulator(facts: Problem) -> str:
    if facts.simulator is None or facts.behaviour is None:
        raise InputError(
            f"{facts.name}: cannot be regenerated, only the Gym tasks can (ant, halfcheetah, hopper, "
            "walker2d); people's demonstrations have no policy"
        )
    return facts.simulator


def _derive_seed(name: str, seed: int, number: int) -> int:
    """Another seed for every data set and policy, so that no two share their initial states."""
    letters = int.from_bytes(name.encode(), "big") % 2**32
    return int(np.random.SeedSequence([seed, number, letters]).generate_state(1)[0] >> 1)


def _make_recipe(facts: Problem, search_path: SearchPath, steps: int, seed: int) -> dict[str, Any]:
    """All that the data depend on."""
    packages = {name: require(name, extra="gym", purpose="Simulating") for name in ("gymnasium", "mujoco")}
    behaviour = {policy: facts.policies[policy] for policy in facts.behaviour or ()}
    files: dict[str, Path | None] = {policy: search_path.find(remote) for policy, remote in behaviour.items()}
    return {
        "name": facts.name,
        "steps": steps,
        "seed": seed,
        "policies": {policy: None if path is None else checksum(path)[:16] for policy, path in files.items()},
        **{name: package.__version__ for name, package in packages.items()},
    }
