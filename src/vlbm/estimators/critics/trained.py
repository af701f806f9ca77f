"""Critics after training, and what they say of logged steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Shaped

from vlbm.estimators.critics.bellman import Logged, Shape
from vlbm.estimators.critics.choices import Choices
from vlbm.estimators.critics.lots import ASKED, SEATS, Asked, seated
from vlbm.estimators.critics.networks import Critics
from vlbm.parallel import REPLICATED, split, split_along, uncommit

CHUNK = 1024  # observations evaluated at once: what networks keep of them should fit in caches
TOGETHER = 32  # chunks of one compiled call: every call claims its memory anew, page by page


@dataclass(frozen=True, eq=False)
class Trained:
    """Critics after training, and how it went."""

    critics: Critics
    shape: Shape
    logged: Logged
    choices: Choices
    table: Float[Array, "copies*rows policies*act"] | None
    # Mean value over logged initial observations at every look, last at the end.
    course: Float[np.ndarray, "looks models policies"]
    steps: int  # less than were asked for when training was interrupted
    diverged: dict[int, int]  # policies whose networks left the numbers, and the last step before

    def state_values(self, rows: Int[np.ndarray, " rows"]) -> Float[np.ndarray, "models policies rows"]:
        """V of logged observations, in double precision."""
        return self.raw(self._averaged(rows, range(self._draws))[0])

    def initial_values(
        self, rows: Int[np.ndarray, " rows"], *, draws: int
    ) -> tuple[Float[np.ndarray, "models policies rows"], Float[np.ndarray, "models policies"]]:
        """V of some observations with more draws than usual, and the share that left the feasible range."""
        drawn = range(self._draws, self._draws + draws) if self.choices.drawn else range(1)
        values, outside = self._averaged(rows, drawn)
        return self.raw(values), (outside > 1e-3).mean(axis=-1)

    def action_values(self, steps: Int[np.ndarray, " steps"]) -> Float[np.ndarray, "models policies steps"]:
        """Q of logged actions, in double precision."""
        networks = (self.critics, self.logged)
        found = ((_action_values(*networks, jnp.asarray(part), self.shape), n) for part, n in longer(steps))
        return self.raw(joined(found))

    def raw(self, values: Float[np.ndarray, "*batch"]) -> Float[np.ndarray, "*batch"]:
        """Values in the units of rewards."""
        return float(self.logged.offset) + float(self.logged.unit) * values.astype(np.float64)

    def asked(self, rows: Int[np.ndarray, " rows"], *, draw: int) -> Asked:
        """What the policies do at logged observations."""
        return asked(self.choices, self.table, rows, draw, self.shape)

    def uncommit(self) -> Trained:
        """The same on one device, without the table and what is on empty seats."""
        count = len(self.choices.policies)
        return replace(
            self,
            critics=uncommit(jax.tree.map(lambda leaf: np.asarray(leaf)[:, :count], self.critics)),
            shape=replace(self.shape, policies=count, lots=1),
            logged=uncommit(self.logged),
            choices=replace(self.choices, empty=0),
            table=None,
            course=self.course[..., :count],
        )

    @property
    def _draws(self) -> int:
        return self.choices.draws if self.choices.drawn else 1

    def _averaged(self, rows: np.ndarray, draws: range) -> tuple[np.ndarray, np.ndarray]:
        networks = (self.critics, self.logged)
        total: Any = 0.0
        for draw in draws:
            found = (
                (_state_values(*networks, jnp.asarray(part), self.asked(part, draw=draw), self.shape), count)
                for part, count in longer(rows)
            )
            total = total + joined(found).astype(np.float64) / len(draws)
        values, outside = total
        return values, outside


def asked(
    choices: Choices,
    table: Array | None,
    rows: Int[np.ndarray, "*batch"],
    draw: int | Int[np.ndarray, "*batch"],
    shape: Shape,
) -> Asked:
    """What policies do at some observations: found in the whole table, or in one made for them."""
    if table is not None and np.max(draw) < choices.copies:
        return Asked(table, jnp.asarray(draw * len(choices.observation) + rows))
    block = choices.at(rows.ravel(), draw=int(np.max(draw)))
    return Asked(seated(block, shape), jnp.arange(rows.size).reshape(rows.shape))


def chunks(rows: np.ndarray, *, size: int = CHUNK) -> Iterator[tuple[np.ndarray, int]]:
    """Parts of one length; the last is filled up with its own last row."""
    size = size if len(rows) > CHUNK else len(rows)
    for first in range(0, len(rows), size):
        part = rows[np.minimum(np.arange(first, first + size), len(rows) - 1)]
        yield part, min(size, len(rows) - first)


def longer(rows: np.ndarray) -> Iterator[tuple[np.ndarray, int]]:
    """Parts of several chunks, again of one length."""
    pieces = -(-len(rows) // CHUNK)
    calls = -(-pieces // TOGETHER)
    yield from chunks(rows, size=CHUNK * -(-pieces // calls))


def by_chunks(function: Callable[..., Array], *rows: Shaped[Array, " rows"]) -> Shaped[Array, "... rows"]:
    """The function of a part of several chunks, one chunk after the other."""
    if len(rows[0]) <= CHUNK:
        return function(*rows)
    found = jax.lax.map(lambda chunk: function(*chunk), tuple(part.reshape(-1, CHUNK) for part in rows))
    return jnp.moveaxis(found, 0, -2).reshape(*found.shape[1:-1], -1)


def joined(parts: Iterator[tuple[Array, int]]) -> np.ndarray:
    """What was found for chunks, along their last axis; all are begun before the first is waited for."""
    return np.concatenate([np.asarray(found)[..., :count] for found, count in list(parts)], axis=-1)


@eqx.filter_jit
def _state_values(
    critics: Critics, logged: Logged, rows: Int[Array, " rows"], choice: Asked, shape: Shape
) -> Float[Array, "both models policies rows"]:
    def own(critics: Critics, logged: Logged, rows: Array, choice: Asked) -> Array:
        def values(rows: Array, place: Array) -> Array:
            return jnp.stack(logged.state_values(critics, rows, choice.table[place], shape.lot))

        return by_chunks(values, rows, choice.place)

    specs, both = (SEATS, REPLICATED, REPLICATED, ASKED), split_along(2)
    return split(own, shape.lots, in_specs=specs, out_specs=both)(critics, logged, rows, choice)


@eqx.filter_jit
def _action_values(
    critics: Critics, logged: Logged, steps: Int[Array, " steps"], shape: Shape
) -> Float[Array, "models policies steps"]:
    def own(critics: Critics, logged: Logged, steps: Array) -> Array:
        return by_chunks(lambda part: logged.logged_values(critics, part, shape.lot), steps)

    return split(own, shape.lots, in_specs=(SEATS, REPLICATED, REPLICATED), out_specs=SEATS)(
        critics, logged, steps
    )
