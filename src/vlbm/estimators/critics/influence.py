"""Influence: how much every logged step counts in a critic's value of a policy."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from vlbm.estimators.critics.bellman import Logged, Shape
from vlbm.estimators.critics.leap import Unknowns, probe_size
from vlbm.estimators.critics.networks import Critics
from vlbm.estimators.critics.temporal_difference import Trained, chunks

RIDGE = 1e-5  # of the mean square of the regressors: with 1e-3 it would decide what slow changes weigh


def influence(
    trained: Trained, steps: Int[np.ndarray, " usable"], initial: Int[np.ndarray, " episodes"]
) -> Float[np.ndarray, "models policies usable"]:
    """What a Bellman residual of one at each of the steps, averaged over them, would add to a value.

    In what networks are linear in, a value is the solution of linear equations, and these weights are
    its derivative (LSTD's influence function). They are what the critic takes for the ratio of a policy's
    visits to logged ones: large where the policy goes often and the log seldom, so that few logged
    steps decide and their luck is not averaged away.
    """
    networks = (trained.critics, trained.logged, trained.shape)
    before = np.asarray(trained.logged.before)
    probe = steps[:: -(-len(steps) // probe_size(trained.critics))]
    square = size = begun = np.zeros(())
    for part, count in chunks(probe):
        choice = trained.choice(before[part] + 1, draw=0)
        here, mean_square = _sums(*networks, jnp.asarray(part), jnp.arange(len(part)) < count, choice)
        # In double precision: what a slow change weighs is the inverse of a small difference.
        square = square + np.asarray(here, np.float64) / len(probe)
        size = size + np.asarray(mean_square, np.float64) / len(probe)
    for part, count in chunks(initial):
        choice = trained.choice(part, draw=0)
        found = _begun(*networks, jnp.asarray(part), jnp.arange(len(part)) < count, choice)
        begun = begun + np.asarray(found, np.float64) / len(initial)
    unknowns = Unknowns(trained.critics, trained.shape).total
    ridge = RIDGE * size[..., None, None] * np.eye(unknowns)
    direction = np.linalg.solve(np.swapaxes(square, -1, -2) + ridge, begun[..., None])[..., 0]
    parts = [
        np.asarray(_weights(*networks, jnp.asarray(direction, jnp.float32), jnp.asarray(part)))[..., :count]
        for part, count in chunks(steps)
    ]
    weights = np.concatenate(parts, axis=-1)
    # Of twins the smaller is believed, now one and now the other.
    return weights.reshape(trained.shape.models, -1, *weights.shape[1:]).mean(axis=1)


@eqx.filter_jit
def _sums(
    critics: Critics,
    logged: Logged,
    shape: Shape,
    step: Int[Array, " batch"],
    counted: Bool[Array, " batch"],
    choice: Float[Array, "batch policies*act"],
) -> tuple[Float[Array, "copies policies unknowns unknowns"], Float[Array, "copies policies"]]:
    unknowns = Unknowns(critics, shape)
    here = unknowns.logged(logged, step) * counted
    there = unknowns.chosen(logged, logged.before[step] + 1, choice)
    lost = here - logged.discount * logged.goes_on[step] * counted * there
    return jnp.einsum("cpib,cpjb->cpij", here, lost), (here**2).sum(axis=(-2, -1)) / here.shape[-2]


@eqx.filter_jit
def _begun(
    critics: Critics,
    logged: Logged,
    shape: Shape,
    row: Int[Array, " batch"],
    counted: Bool[Array, " batch"],
    choice: Float[Array, "batch policies*act"],
) -> Float[Array, "copies policies unknowns"]:
    return (Unknowns(critics, shape).chosen(logged, row, choice) * counted).sum(axis=-1)


@eqx.filter_jit
def _weights(
    critics: Critics,
    logged: Logged,
    shape: Shape,
    direction: Float[Array, "copies policies unknowns"],
    step: Int[Array, " batch"],
) -> Float[Array, "copies policies batch"]:
    return jnp.einsum("cpi,cpib->cpb", direction, Unknowns(critics, shape).logged(logged, step))
