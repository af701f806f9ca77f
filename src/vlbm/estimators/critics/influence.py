"""Influence: how much every logged step counts in a critic's value of a policy."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from vlbm.estimators.critics.bellman import Logged, Shape
from vlbm.estimators.critics.leap import Unknowns, probe_size, solved
from vlbm.estimators.critics.lots import ASKED, SEATS, Asked, seated
from vlbm.estimators.critics.networks import Critics
from vlbm.estimators.critics.trained import Trained, by_chunks, chunks, joined, longer
from vlbm.parallel import REPLICATED, split, split_along

RIDGE = 1e-5  # of the mean square of the regressors: with 1e-3 it would decide what slow changes weigh


def influence(
    trained: Trained, steps: Int[np.ndarray, " usable"], initial: Int[np.ndarray, " episodes"]
) -> Float[np.ndarray, "copies policies unknowns"]:
    """How much a value grows with a Bellman residual, by what critics are linear in.

    There a value is the solution of linear equations, and its derivative by a logged residual (LSTD's
    influence function) is linear in the same regressors of the logged step: this is the factor, for residuals
    averaged over the steps. What a step weighs is what the critic takes for the ratio of a policy's visits to
    logged ones: large where the policy goes often and the log seldom, so that few logged steps decide and
    their luck is not averaged away.
    """
    networks = (trained.critics, trained.logged)
    before = np.asarray(trained.logged.before)
    probe = steps[:: -(-len(steps) // probe_size(trained.critics))]
    square = size = begun = np.zeros(())
    for part, count in chunks(probe):
        choice = trained.asked(before[part] + 1, draw=0)
        here, mean_square = _sums(*networks, *_counted(part, count), choice, trained.shape)
        # In double precision: what a slow change weighs is the inverse of a small difference.
        square = square + np.asarray(here, np.float64) / len(probe)
        size = size + np.asarray(mean_square, np.float64) / len(probe)
    for part, count in chunks(initial):
        choice = trained.asked(part, draw=0)
        found = _begun(*networks, *_counted(part, count), choice, trained.shape)
        begun = begun + np.asarray(found, np.float64) / len(initial)
    return solved(np.swapaxes(square, -1, -2), begun, size, ridge=RIDGE)


def values_and_weights(
    trained: Trained, factor: Float[np.ndarray, "copies policies unknowns"]
) -> tuple[Float[np.ndarray, "models policies steps"], Float[np.ndarray, "models policies steps"]]:
    """Q of all logged actions, and what their Bellman residuals weigh: in one pass over hidden layers."""
    networks = (trained.critics, trained.logged, seated(factor.astype(np.float32), trained.shape))
    steps = np.arange(len(trained.logged.before))
    found = ((_both(*networks, jnp.asarray(part), trained.shape), count) for part, count in longer(steps))
    values, weights = joined(found)
    return trained.raw(values), weights


def _counted(part: np.ndarray, count: int) -> tuple[Int[Array, " batch"], Bool[Array, " batch"]]:
    return jnp.asarray(part), jnp.arange(len(part)) < count


@eqx.filter_jit
def _sums(
    critics: Critics,
    logged: Logged,
    step: Int[Array, " batch"],
    counted: Bool[Array, " batch"],
    choice: Asked,
    shape: Shape,
) -> tuple[Float[Array, "copies policies unknowns unknowns"], Float[Array, "copies policies"]]:
    def own(critics: Critics, logged: Logged, step: Array, counted: Array, choice: Asked):
        unknowns = Unknowns(critics, shape.lot)
        here = unknowns.logged(logged, step) * counted
        there = unknowns.chosen(logged, logged.before[step] + 1, choice.found)
        lost = here - logged.discount * logged.goes_on[step] * counted * there
        return jnp.einsum("cpib,cpjb->cpij", here, lost), (here**2).sum(axis=(-2, -1)) / here.shape[-2]

    specs = (SEATS, REPLICATED, REPLICATED, REPLICATED, ASKED)
    return split(own, shape.lots, in_specs=specs, out_specs=SEATS)(critics, logged, step, counted, choice)


@eqx.filter_jit
def _begun(
    critics: Critics,
    logged: Logged,
    row: Int[Array, " batch"],
    counted: Bool[Array, " batch"],
    choice: Asked,
    shape: Shape,
) -> Float[Array, "copies policies unknowns"]:
    def own(critics: Critics, logged: Logged, row: Array, counted: Array, choice: Asked) -> Array:
        return (Unknowns(critics, shape.lot).chosen(logged, row, choice.found) * counted).sum(axis=-1)

    specs = (SEATS, REPLICATED, REPLICATED, REPLICATED, ASKED)
    return split(own, shape.lots, in_specs=specs, out_specs=SEATS)(critics, logged, row, counted, choice)


@eqx.filter_jit
def _both(
    critics: Critics,
    logged: Logged,
    factor: Float[Array, "copies policies unknowns"],
    step: Int[Array, " batch"],
    shape: Shape,
) -> Float[Array, "both models policies batch"]:
    def own(critics: Critics, logged: Logged, factor: Array, step: Array) -> Array:
        lot = shape.lot

        def values(step: Array) -> Array:
            weights = jnp.einsum("cpi,cpib->cpb", factor, Unknowns(critics, lot).logged(logged, step))
            # Of twins the smaller is believed, now one and now the other.
            weights = weights.reshape(lot.models, -1, *weights.shape[1:]).mean(axis=1)
            return jnp.stack([logged.logged_values(critics, step, lot), weights])

        return by_chunks(values, step)

    specs, both = (SEATS, REPLICATED, SEATS, REPLICATED), split_along(2)
    return split(own, shape.lots, in_specs=specs, out_specs=both)(critics, logged, factor, step)
