"""Leaps: what critics are linear in, solved for at once instead of being waited for."""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from vlbm.estimators.critics.bellman import Logged, Shape
from vlbm.estimators.critics.networks import Critics

PROBE = 6_000_000  # numbers that a leap looks at for one network: regressors of as many steps as that makes
LARGEST_SYSTEM = 300  # unknowns of a leap where every discrete action has its own
RIDGE = 3e-3  # of the mean square of the regressors
PIECE = 512  # steps looked at together


class Sums(NamedTuple):
    """What the equations are made of."""

    square: Float[Array, "copies policies unknowns unknowns"]
    right: Float[Array, "copies policies unknowns"]
    size: Float[Array, "copies policies"]  # mean square of the regressors


def probe_size(critics: Critics) -> int:
    """How many steps a leap looks at; whoever else is evaluated, a policy's leaps look at as many."""
    unknowns = critics.regressor_count * critics.head.bias.shape[-1]
    return max(PROBE // min(unknowns, LARGEST_SYSTEM), 1000)


@eqx.filter_jit
def leap(
    critics: Critics,
    logged: Logged,
    probe: Int[Array, " probe"],
    choice: Float[Array, "probe policies*act"],
    shape: Shape,
) -> Float[Array, "copies policies regressors #outputs"]:
    """How last layers and quadratic parts move to where repeating the regression on them would end.

    Training on one's own predictions is slowest where values rise or fall together: with a discount of
    0.995 such an error shrinks by half a percent while the targets are renewed. For what is linear the
    end of it all is one system of linear equations (LSTD, as a correction of what is there).
    """
    actions = choice.shape[-1] // shape.policies
    outputs = 1
    if shape.discrete and critics.regressor_count * actions <= LARGEST_SYSTEM:
        # Every action has a head of its own. Where that is too many, all heads are moved alike.
        outputs = actions
    unknowns = critics.regressor_count * outputs

    def add(sums: Sums, piece: tuple[Array, Array, Array]) -> tuple[Sums, None]:
        step, counts, choice = piece
        error = shape.per_copy(logged.targets(critics, step, choice, shape))
        error = error - logged.action_values(critics, step, shape)
        taken, chosen = logged.action[step], choice.reshape(len(step), shape.policies, -1)
        row = logged.before[step]
        here = critics.regressors(logged.seen(row, shape), None if shape.discrete else taken)
        there = critics.regressors(logged.seen(row + 1, shape), None if shape.discrete else chosen)
        if outputs > 1:
            here = by_action(here, jax.nn.one_hot(taken, outputs).T)
            there = by_action(there, jnp.moveaxis(chosen, 0, -1))
        weight = shape.per_copy(logged.weight[logged.episode[step]].T) * counts
        weighted = weight[:, None, None] * here
        lost = here - logged.discount * logged.goes_on[step] * there
        more = Sums(
            square=jnp.einsum("cpib,cpjb->cpij", weighted, lost),
            right=jnp.einsum("cpib,cpb->cpi", weighted, error),
            size=(weighted * here).sum(axis=(-2, -1)) / unknowns,
        )
        return jax.tree.map(jnp.add, sums, more), None

    pieces = _pieces(probe, choice)
    stack = critics.bias.shape[:2]
    nothing = Sums(jnp.zeros((*stack, unknowns, unknowns)), jnp.zeros((*stack, unknowns)), jnp.zeros(stack))
    sums, _ = jax.lax.scan(add, nothing, pieces)
    ridge = RIDGE * sums.size[..., None, None] * jnp.eye(unknowns)
    by = jnp.linalg.solve(sums.square + ridge, sums.right[..., None])
    by = by.reshape(*stack, -1, outputs)
    # A system that is nearly singular answers anything: no leap goes farther than values are spread (a
    # piece of the steps tells how far it goes).
    step = pieces[0][0]
    moved = logged.action_values(critics.corrected(by), step, shape)
    change = moved - logged.action_values(critics, step, shape)
    by = by / jnp.maximum(jnp.sqrt((change**2).mean(axis=-1)), 1.0)[..., None, None]
    return jnp.where(jnp.isfinite(by).all(axis=(-2, -1), keepdims=True), by, 0.0)


def _pieces(probe: Int[Array, " probe"], choice: Array) -> tuple[Array, Array, Array]:
    """Steps, what each of them counts, and choices, in pieces that a processor's caches hold."""
    count, size = len(probe), min(PIECE, len(probe))
    place = np.arange(-(-count // size) * size)
    counts = jnp.asarray(place < count, jnp.float32) / count
    place = np.minimum(place, count - 1)
    return (
        probe[place].reshape(-1, size),
        counts.reshape(-1, size),
        choice[place].reshape(-1, size, choice.shape[-1]),
    )


def by_action(
    features: Float[Array, "*stack units batch"], share: Float[Array, "*#stack actions batch"]
) -> Float[Array, "*stack units*actions batch"]:
    """Regressors of every action, as much as it has a share in what is done."""
    parts = features[..., None, :] * share[..., None, :, :]
    return parts.reshape(*features.shape[:-2], -1, features.shape[-1])
