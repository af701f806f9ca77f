"""What ratios leave unbalanced, and what that is worth by values of the same features."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from vlbm.estimators.critics.bellman import Logged
from vlbm.estimators.critics.trained import chunks
from vlbm.estimators.ratios.balance import Balance
from vlbm.estimators.ratios.descent import Trained
from vlbm.estimators.ratios.functions import Reading
from vlbm.estimators.ratios.leap import Unknowns

PROBE = 100_000  # logged steps that equations are made of
RIDGE = 1e-5  # of the mean square of the features


def remainders(
    balance: Balance, trained: Trained, ratio: Float[np.ndarray, "policies usable"]
) -> Float[np.ndarray, " policies"]:
    """What a policy would be worth more if what its ratios do not balance were made up for.

    Ratios that balance for a value function Q need no Q: what begins is worth as much as what the weighted
    steps earn. Here Q solves linear equations (LSTD) in what the ratio networks are linear in, and its
    balance is looked at: where training has not settled, or positive ratios cannot reach what is asked of
    them, the two ways to a value differ, and this is their difference.
    """
    problem, logged, policies = balance.problem, trained.logged, len(ratio)
    usable, first = problem.usable, problem.episodes.first_observation
    features = Unknowns(_plain(trained.reading), trained.networks)
    before = np.asarray(logged.before)
    square = right = size = np.zeros(())
    probe = usable[:: -(-len(usable) // PROBE)]
    for part, count in chunks(probe):
        choice = trained.answers.at(before[part] + 1, draw=0)
        sums = _sums(features, logged, jnp.asarray(part), jnp.arange(len(part)) < count, choice)
        # In double precision: what changes slowly is a small difference.
        found = [np.asarray(total, np.float64) / len(probe) for total in sums]
        square, right, size = square + found[0], right + found[1], size + found[2]
    ridge = RIDGE * size[:, None, None] * np.eye(features.total)
    weight = jnp.asarray(np.linalg.solve(square + ridge, right[..., None])[..., 0], jnp.float32)
    begun, gone, done = np.zeros(policies), np.zeros(policies), 0
    for part, count in chunks(first):
        choice = trained.answers.at(part, draw=0)
        values = np.asarray(_chosen(features, logged, weight, jnp.asarray(part), choice), np.float64)
        begun += values[:, :count].sum(axis=1) / len(first)
    for part, count in chunks(usable):
        choice = trained.answers.at(before[part] + 1, draw=0)
        lost = np.asarray(_lost(features, logged, weight, jnp.asarray(part), choice), np.float64)
        gone += (ratio[:, done : done + count] * lost[:, :count]).sum(axis=1)
        done += count
    return begun - gone / np.maximum(balance.ended(ratio, usable), 1e-12)


def _plain(reading: Reading) -> Reading:
    """Outputs as they are: what is looked for are values, which may be negative."""
    return Reading(jnp.zeros(()), jnp.ones(()), False, reading.policies, reading.discrete)


@eqx.filter_jit
def _sums(
    features: Unknowns,
    logged: Logged,
    step: Int[Array, " chunk"],
    counted: Bool[Array, " chunk"],
    choice: Float[Array, "chunk policies*act"],
) -> tuple[Array, Array, Array]:
    here = features.logged(logged, step) * counted
    there = features.chosen(logged, logged.before[step] + 1, choice) * counted
    lost = here - logged.discount * logged.goes_on[step] * there
    return (
        jnp.einsum("pib,pjb->pij", here, lost),
        jnp.einsum("pib,b->pi", here, logged.reward[step]),
        (here**2).sum(axis=(-2, -1)) / here.shape[-2],
    )


@eqx.filter_jit
def _chosen(features: Unknowns, logged: Logged, weight: Array, row: Array, choice: Array) -> Array:
    return jnp.einsum("pi,pib->pb", weight, features.chosen(logged, row, choice))


@eqx.filter_jit
def _lost(features: Unknowns, logged: Logged, weight: Array, step: Array, choice: Array) -> Array:
    """What the value falls by from a step to the next."""
    here = jnp.einsum("pi,pib->pb", weight, features.logged(logged, step))
    there = _chosen(features, logged, weight, logged.before[step] + 1, choice)
    return here - logged.discount * logged.goes_on[step] * there
