"""Last layers, moved at once to where training them on the same features would end."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from vlbm.estimators.critics.bellman import Logged
from vlbm.estimators.critics.leap import LARGEST_SYSTEM, by_action
from vlbm.estimators.critics.networks import Critics
from vlbm.estimators.ratios.batches import Batch
from vlbm.estimators.ratios.functions import Reading, seen_at

FARTHEST = 1.0  # change of the outputs by one leap, on average

Sums = TypeVar("Sums")
Stacks = TypeVar("Stacks")
Found = TypeVar("Found")


def summed(of: Callable[[Batch], Sums], batches: Batch) -> Sums:
    """The mean over batches of the same size, without holding more than one in memory."""
    count = len(jax.tree.leaves(batches)[0])
    shapes = jax.eval_shape(of, jax.tree.map(lambda leaf: leaf[0], batches))

    def add(total: Sums, batch: Batch) -> tuple[Sums, None]:
        return jax.tree.map(lambda old, new: old + new / count, total, of(batch)), None

    return jax.lax.scan(add, jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), shapes), batches)[0]


def one_by_one(
    of: Callable[[Stacks, Array, Batch], Found],
    stacks: Stacks,
    numbers: Float[Array, " policies"],
    batches: Batch,
) -> Found:
    """What is found for every policy alone, one after the other: whoever else there is, it is the same.

    Every policy comes with its networks, a number of its own and batches with its own choices.
    """
    policies = len(numbers)

    def split(choice: Float[Array, "count batch policies*act"]) -> Float[Array, "policies count batch act"]:
        return jnp.moveaxis(choice.reshape(*choice.shape[:2], policies, -1), 2, 0)

    def alone(part: tuple[Stacks, Array, Array, Array]) -> Found:
        stacks, number, choice, first_choice = part
        single = jax.tree.map(lambda leaf: leaf[:, None], stacks)
        return of(single, number[None], batches._replace(choice=choice, first_choice=first_choice))

    swapped = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), stacks)
    parts = (swapped, numbers, split(batches.choice), split(batches.first_choice))
    return jax.tree.map(lambda leaf: leaf[:, 0], jax.lax.map(alone, parts))


class Unknowns(NamedTuple):
    """The last layers of a stack of networks as unknowns of linear equations.

    Every action has a head of its own, moved apart; where that would be too many unknowns, all heads are
    moved alike.
    """

    reading: Reading
    networks: Critics

    @property
    def heads(self) -> int:
        units, actions = self.networks.head.weight.shape[-2:]
        return actions if self.reading.discrete and (units + 1) * actions <= LARGEST_SYSTEM else 1

    @property
    def total(self) -> int:
        return self.networks.regressor_count * self.heads

    def logged(self, logged: Logged, step: Int[Array, " batch"]) -> Float[Array, "policies unknowns batch"]:
        """How the outputs for logged actions grow with the unknowns."""
        taken = logged.action[step]
        given = None if self.reading.discrete else taken
        found = self.networks.regressors(seen_at(logged, logged.before[step]), given)[0]
        return found if self.heads == 1 else by_action(found, jax.nn.one_hot(taken, self.heads).T)

    def chosen(
        self,
        logged: Logged,
        row: Int[Array, " batch"],
        choice: Float[Array, "batch policies*act"],
    ) -> Float[Array, "policies unknowns batch"]:
        """How what is read for the policies' own actions grows with the unknowns."""
        seen, chosen = seen_at(logged, row), choice.reshape(len(row), self.reading.policies, -1)
        given = None if self.reading.discrete else chosen
        found = self.networks.regressors(seen, given)[0]
        slope = self.reading.slope(self.networks(seen, given)[0])
        if not self.reading.discrete:
            return found * slope
        weight = jnp.moveaxis(chosen, 0, -1) * slope
        return found * weight.sum(1, keepdims=True) if self.heads == 1 else by_action(found, weight)

    def moved(self, other: Critics, by: Float[Array, "policies unknowns"]) -> Critics:
        """Other networks of this kind with the unknowns changed; what is no number changes nothing."""
        by = jnp.where(jnp.isfinite(by).all(axis=-1, keepdims=True), by, 0.0)
        return other.corrected(by.reshape(1, len(by), -1, self.heads))


def product(
    left: Float[Array, "policies left batch"], right: Float[Array, "policies right batch"]
) -> Float[Array, "policies left right"]:
    """The mean of products over a batch."""
    return jnp.einsum("pib,pjb->pij", left, right) / left.shape[-1]


def inner(
    features: Float[Array, "policies unknowns batch"], values: Float[Array, "policies batch"]
) -> Float[Array, "policies unknowns"]:
    """The mean of features times values over a batch."""
    return jnp.einsum("pib,pb->pi", features, values) / features.shape[-1]


def ridge(square: Float[Array, "policies n n"], *, weight: float) -> Float[Array, "policies n n"]:
    """What keeps a system solvable: a share of its mean diagonal."""
    size = jnp.trace(square, axis1=-2, axis2=-1)[:, None, None] / square.shape[-1]
    return weight * size * jnp.eye(square.shape[-1])


def shortened(
    by: Float[Array, "policies unknowns"], square: Float[Array, "policies unknowns unknowns"]
) -> Float[Array, "policies 1"]:
    """The part of a leap that is gone: a system that is nearly singular answers anything."""
    change = jnp.sqrt(jnp.einsum("pi,pij,pj->p", by, square, by).clip(0.0))[:, None]
    return jnp.minimum(FARTHEST / (change + 1e-12), 1.0)
