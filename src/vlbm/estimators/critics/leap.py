"""Leaps: what critics are linear in, solved for at once instead of being waited for."""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from vlbm.estimators.critics.bellman import Logged, Shape
from vlbm.estimators.critics.lots import SEATS, Asked, seated
from vlbm.estimators.critics.networks import Critics
from vlbm.parallel import REPLICATED, split

PROBE = 6_000_000  # numbers that a leap looks at for one network: regressors of as many steps as that makes
LARGEST_SYSTEM = 300  # unknowns of a leap where every discrete action has its own
RIDGE = 3e-3  # of the mean square of the regressors
PIECE = 512  # steps looked at together


class Unknowns(NamedTuple):
    """What critics are linear in, as unknowns of linear equations.

    Every discrete action has a head of its own; where that would be too many unknowns, all heads are moved
    alike.
    """

    critics: Critics
    shape: Shape

    @property
    def outputs(self) -> int:
        actions = self.critics.head.bias.shape[-1]
        apart = self.shape.discrete and self.critics.regressor_count * actions <= LARGEST_SYSTEM
        return actions if apart else 1

    @property
    def total(self) -> int:
        return self.critics.regressor_count * self.outputs

    def logged(
        self, logged: Logged, step: Int[Array, " batch"]
    ) -> Float[Array, "copies policies unknowns batch"]:
        """How Q of logged actions grows with the unknowns."""
        taken, seen = logged.action[step], logged.seen(logged.before[step], self.shape)
        here = self.critics.regressors(seen, None if self.shape.discrete else taken)
        return here if self.outputs == 1 else by_action(here, jax.nn.one_hot(taken, self.outputs).T)

    def chosen(
        self, logged: Logged, row: Int[Array, " batch"], choice: Float[Array, "batch policies*act"]
    ) -> Float[Array, "copies policies unknowns batch"]:
        """How V grows with the unknowns, where policies act by their choices."""
        chosen = choice.reshape(len(row), self.shape.policies, -1)
        seen = logged.seen(row, self.shape)
        there = self.critics.regressors(seen, None if self.shape.discrete else chosen)
        return there if self.outputs == 1 else by_action(there, jnp.moveaxis(chosen, 0, -1))


class Sums(NamedTuple):
    """What the equations are made of."""

    square: Float[Array, "copies policies unknowns unknowns"]
    right: Float[Array, "copies policies unknowns"]
    size: Float[Array, "copies policies"]  # mean square of the regressors


def probe_size(critics: Critics) -> int:
    """How many steps a leap looks at; whoever else is evaluated, a policy's leaps look at as many."""
    unknowns = critics.regressor_count * critics.head.bias.shape[-1]
    return max(PROBE // min(unknowns, LARGEST_SYSTEM), 1000)


def leap(
    critics: Critics,
    logged: Logged,
    probe: Int[np.ndarray, " probe"],
    choice: Asked,
    shape: Shape,
) -> Float[Array, "copies policies regressors #outputs"]:
    """How last layers and quadratic parts move to where repeating the regression on them would end.

    Training on one's own predictions is slowest where values rise or fall together: with a discount of
    0.995 such an error shrinks by half a percent while the targets are renewed. For what is linear the
    end of it all is one system of linear equations (LSTD, as a correction of what is there).
    """
    pieces = _pieces(probe, np.asarray(choice.place))
    sums = _sums(critics, logged, pieces, choice.table, shape)
    by = solved(*(np.asarray(part, np.float64) for part in sums), ridge=RIDGE).astype(np.float32)
    by = seated(by.reshape(*by.shape[:2], critics.regressor_count, -1), shape)
    return _bounded(critics, logged, pieces[0][0], by, shape)


def solved(
    square: Float[np.ndarray, "*stack unknowns unknowns"],
    right: Float[np.ndarray, "*stack unknowns"],
    size: Float[np.ndarray, "*stack"],
    *,
    ridge: float,
) -> Float[np.ndarray, "*stack unknowns"]:
    """Solutions of linear equations, in double precision and not on a device: compiled solvers of two
    devices at once wait for each other for ever. What cannot be solved is not a number."""
    whole = square + ridge * size[..., None, None] * np.eye(square.shape[-1])
    try:
        return np.linalg.solve(whole, right[..., None])[..., 0]
    except np.linalg.LinAlgError:
        if whole.ndim == 2:
            return np.full_like(right, np.nan)
        parts = zip(square, right, size, strict=True)
        return np.stack([solved(*part, ridge=ridge) for part in parts])


@eqx.filter_jit
def _sums(
    critics: Critics,
    logged: Logged,
    pieces: tuple[Array, Array, Array],
    table: Float[Array, "places policies*act"],
    shape: Shape,
) -> Sums:
    def own(critics: Critics, logged: Logged, pieces: tuple[Array, Array, Array], table: Array) -> Sums:
        return _own_sums(critics, logged, pieces, table, shape.lot)

    specs = (SEATS, REPLICATED, REPLICATED, SEATS)
    return split(own, shape.lots, in_specs=specs, out_specs=SEATS)(critics, logged, pieces, table)


def _own_sums(
    critics: Critics, logged: Logged, pieces: tuple[Array, Array, Array], table: Array, shape: Shape
) -> Sums:
    regressors = Unknowns(critics, shape)
    unknowns = regressors.total

    def add(sums: Sums, piece: tuple[Array, Array, Array]) -> tuple[Sums, None]:
        step, counts, place = piece
        choice = table[place]
        error = shape.per_copy(logged.targets(critics, step, choice, shape))
        error = error - logged.action_values(critics, step, shape)
        here = regressors.logged(logged, step)
        there = regressors.chosen(logged, logged.before[step] + 1, choice)
        weight = shape.per_copy(logged.weight[logged.episode[step]].T) * counts
        weighted = weight[:, None, None] * here
        lost = here - logged.discount * logged.goes_on[step] * there
        more = Sums(
            square=jnp.einsum("cpib,cpjb->cpij", weighted, lost),
            right=jnp.einsum("cpib,cpb->cpi", weighted, error),
            size=(weighted * here).sum(axis=(-2, -1)) / unknowns,
        )
        return jax.tree.map(jnp.add, sums, more), None

    stack = critics.bias.shape[:2]
    nothing = Sums(jnp.zeros((*stack, unknowns, unknowns)), jnp.zeros((*stack, unknowns)), jnp.zeros(stack))
    return jax.lax.scan(add, nothing, pieces)[0]


@eqx.filter_jit
def _bounded(critics: Critics, logged: Logged, step: Array, by: Array, shape: Shape) -> Array:
    """A system that is nearly singular answers anything: no leap goes farther than values are spread (some
    steps tell how far it goes)."""

    def own(critics: Critics, logged: Logged, step: Array, by: Array) -> Array:
        moved = logged.action_values(critics.corrected(by), step, shape.lot)
        change = moved - logged.action_values(critics, step, shape.lot)
        shorter = by / jnp.maximum(jnp.sqrt((change**2).mean(axis=-1)), 1.0)[..., None, None]
        return jnp.where(jnp.isfinite(shorter).all(axis=(-2, -1), keepdims=True), shorter, 0.0)

    specs = (SEATS, REPLICATED, REPLICATED, SEATS)
    return split(own, shape.lots, in_specs=specs, out_specs=SEATS)(critics, logged, step, by)


def _pieces(probe: Int[np.ndarray, " probe"], place: Int[np.ndarray, " probe"]) -> tuple[Array, Array, Array]:
    """Steps, what each of them counts, and where choices stand, in pieces that a processor's caches hold."""
    count, size = len(probe), min(PIECE, len(probe))
    index = np.arange(-(-count // size) * size)
    counts = (index < count).astype(np.float32) / count
    index = np.minimum(index, count - 1)
    step, counts, place = (part.reshape(-1, size) for part in (probe[index], counts, place[index]))
    return jnp.asarray(step), jnp.asarray(counts), jnp.asarray(place)


def by_action(
    features: Float[Array, "*stack units batch"], share: Float[Array, "*#stack actions batch"]
) -> Float[Array, "*stack units*actions batch"]:
    """Regressors of every action, as much as it has a share in what is done."""
    parts = features[..., None, :] * share[..., None, :, :]
    return parts.reshape(*features.shape[:-2], -1, features.shape[-1])
