"""Logged steps with what policies do after them, drawn for training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from vlbm.estimators.critics.bellman import Logged
from vlbm.estimators.critics.choices import Choices

WIDTH = 1000  # of many batches


class Batch(NamedTuple):
    """Logged steps with what the policies do after them, and beginnings with what they do there."""

    step: Int[Array, " batch"]
    choice: Float[Array, "batch policies*act"]
    first: Int[Array, " batch"]  # rows of initial observations
    first_choice: Float[Array, "batch policies*act"]


@dataclass(frozen=True, eq=False)
class Answers:
    """What policies do at logged observations: looked up in a table, or asked where none fits in memory."""

    choices: Choices
    table: Float[Array, "copies*rows policies*act"] | None

    @classmethod
    def of(cls, choices: Choices) -> Answers:
        return cls(choices, jnp.asarray(choices.table()) if choices.copies else None)

    def at(self, rows: Int[np.ndarray, " rows"], *, draw: int) -> Float[Array, "rows policies*act"]:
        places, block = self.places(rows, np.full(rows.shape, draw % max(self.choices.copies, 1)), draw)
        return block[places]

    def places(
        self, rows: Int[np.ndarray, "*batch"], luck: Int[np.ndarray, "*batch"], draw: int
    ) -> tuple[Int[Array, "*batch"], Float[Array, "places policies*act"]]:
        """A table, and where in it the answers at these rows stand."""
        if self.table is not None:
            return jnp.asarray(luck * len(self.choices.observation) + rows, jnp.int32), self.table
        block = self.choices.at(rows.ravel(), draw=draw)
        return jnp.arange(rows.size, dtype=jnp.int32).reshape(rows.shape), jnp.asarray(block)


def many_batches(
    answers: Answers,
    logged: Logged,
    pool: Int[np.ndarray, " usable"],
    initial: Int[np.ndarray, " episodes"],
    size: int,
    random: np.random.Generator,
) -> Batch:
    """Many steps, each once, in batches of one size, with beginnings drawn for them."""
    chosen = random.permutation(pool)[:size]
    width = min(WIDTH, len(chosen))
    chosen = chosen[: len(chosen) // width * width].reshape(-1, width)
    first = initial[random.permutation(chosen.size) % len(initial)].reshape(-1, width)
    after, draw = np.asarray(logged.before)[chosen] + 1, int(random.integers(1 << 30))
    answered = [answers.at(rows.ravel(), draw=draw).reshape(*rows.shape, -1) for rows in (after, first)]
    return Batch(jnp.asarray(chosen), answered[0], jnp.asarray(first), answered[1])
