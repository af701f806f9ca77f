"""Training critics on their own predictions: all policies at once, on the same steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from vlbm.compilation import keep_programs
from vlbm.estimators.critics.bellman import Logged, Shape
from vlbm.estimators.critics.choices import Choices
from vlbm.estimators.critics.leap import leap, probe_size
from vlbm.estimators.critics.networks import Critics
from vlbm.progress import Progress
from vlbm.training import Schedule

STRIDE = 50  # steps per compiled call
LOOKS = 20  # how often the values are looked at
LEAPS = 0.8  # the share of training in which last layers leap, at every second look
CHUNK = 1024  # observations evaluated at once: what networks keep of them should fit in caches


@dataclass(frozen=True)
class Descent:
    """How critics are trained; everything that a compiled program depends on, beside shapes."""

    schedule: Schedule
    batch: int
    target_rate: float  # how fast target networks follow
    averaging: float  # how fast the average of the networks follows


class State(NamedTuple):
    online: Critics
    target: Critics
    average: Critics
    optimiser: Any

    def corrected(self, by: Float[Array, "copies policies regressors #outputs"]) -> State:
        online, target, average = (part.corrected(by) for part in (self.online, self.target, self.average))
        return State(online, target, average, self.optimiser)


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
        parts = [
            np.asarray(_action_values(self.critics, self.logged, jnp.asarray(part), self.shape))[..., :count]
            for part, count in chunks(steps)
        ]
        return self.raw(np.concatenate(parts, axis=-1))

    def raw(self, values: Float[np.ndarray, "*batch"]) -> Float[np.ndarray, "*batch"]:
        """Values in the units of rewards."""
        return float(self.logged.offset) + float(self.logged.unit) * values.astype(np.float64)

    def choice(self, rows: Int[np.ndarray, " rows"], *, draw: int) -> Float[Array, "rows policies*act"]:
        """What the policies do at logged observations."""
        return _choice(self.choices, self.table, rows, draw)

    @property
    def _draws(self) -> int:
        return self.choices.draws if self.choices.drawn else 1

    def _averaged(self, rows: np.ndarray, draws: range) -> tuple[np.ndarray, np.ndarray]:
        parts: list[tuple[np.ndarray, np.ndarray]] = []
        for part, count in chunks(rows):
            total: Any = 0.0
            for draw in draws:
                choice = self.choice(part, draw=draw)
                found = _state_values(self.critics, self.logged, jnp.asarray(part), choice, self.shape)
                total = total + np.stack([np.asarray(piece, np.float64) for piece in found]) / len(draws)
            parts.append(total[..., :count])
        values, outside = np.concatenate(parts, axis=-1)
        return values, outside


def train(
    critics: Critics,
    logged: Logged,
    choices: Choices,
    *,
    shape: Shape,
    descent: Descent,
    pool: Int[np.ndarray, " usable"],
    initial: Int[np.ndarray, " episodes"],
    seed: int,
    progress: Progress,
) -> Trained:
    """Fit Q to rewards plus what slowly following copies of the networks say comes after.

    Steps are drawn from the `pool`, the same for all policies. `initial` are the rows whose values
    are looked at on the way.
    """
    keep_programs()
    random = np.random.default_rng(seed)
    optimiser = jax.jit(jax.vmap(jax.vmap(descent.schedule.optimiser().init)))(critics)
    state = State(critics, critics, critics, optimiser)
    table = choices.table() if choices.copies else None
    before = np.asarray(logged.before)
    count = min(probe_size(critics), len(pool))
    sound = critics
    course: list[np.ndarray] = []
    diverged: dict[int, int] = {}
    steps, done = descent.schedule.steps, 0
    # Looks fall between compiled calls, so that there is no program of another length.
    every = max(steps // LOOKS, 1)
    try:
        with progress.task(total=steps) as report:
            while done < steps:
                begin, done = done, min(done + STRIDE, steps, done - done % every + every)
                drawn = pool[random.integers(len(pool), size=(STRIDE, descent.batch))]
                luck = random.integers(max(choices.copies, 1), size=drawn.shape)
                places, block = _places(choices, table, before[drawn] + 1, luck, begin)
                bounds = jnp.asarray(begin), jnp.asarray(done)
                state, loss = _advance(
                    state, logged, block, jnp.asarray(drawn), places, bounds, shape, descent
                )
                if done % every == 0 or done == steps:
                    look = done // every
                    if look % 2 == 0 and done <= LEAPS * steps:
                        probe = random.choice(pool, count, replace=False)
                        answer = _choice(choices, table, before[probe] + 1, look % max(choices.copies, 1))
                        by = leap(state.average, logged, jnp.asarray(probe), answer, shape)
                        state = state.corrected(by)
                    now = Trained(state.average, shape, logged, choices, table, np.zeros(0), done, {})
                    values = now.state_values(initial).mean(axis=-1)
                    fine = np.isfinite(values).all(axis=0)
                    for index in np.flatnonzero(~fine):
                        diverged.setdefault(int(index), begin)
                    sound = state.average.chosen(np.broadcast_to(fine, state.average.bias.shape[:2]), sound)
                    course.append(np.where(fine, values, course[-1] if course else now.raw(np.zeros(1))))
                report(done, {"loss": float(jnp.mean(loss))})
    except KeyboardInterrupt:
        if not course:  # too early for any look: what there is must do
            sound = state.average
            course.append(np.zeros((shape.models, shape.policies)))
    return Trained(sound, shape, logged, choices, table, np.stack(course), done, diverged)


def _places(
    choices: Choices,
    table: Array | None,
    after: Int[np.ndarray, "strides batch"],
    luck: Int[np.ndarray, "strides batch"],
    number: int,
) -> tuple[Int[Array, "strides batch"], Array]:
    """Where in a table the choices after drawn steps stand: in the whole one, or in one made for them."""
    if table is not None:
        return jnp.asarray(luck * len(choices.observation) + after, jnp.int32), table
    block = choices.at(after.ravel(), draw=number)
    return jnp.arange(after.size, dtype=jnp.int32).reshape(after.shape), jnp.asarray(block)


def _choice(choices: Choices, table: Array | None, rows: np.ndarray, draw: int) -> Array:
    if table is None or draw >= choices.copies:
        return jnp.asarray(choices.at(rows, draw=draw))
    return table[jnp.asarray(draw * len(choices.observation) + rows)]


def chunks(rows: np.ndarray) -> Iterator[tuple[np.ndarray, int]]:
    """Parts of one length; the last is filled up with its own last row."""
    size = min(CHUNK, len(rows))
    for first in range(0, len(rows), size):
        part = rows[np.minimum(np.arange(first, first + size), len(rows) - 1)]
        yield part, min(size, len(rows) - first)


@eqx.filter_jit
def _state_values(critics: Critics, logged: Logged, rows: Array, choice: Array, shape: Shape):
    return logged.state_values(critics, rows, choice, shape)


@eqx.filter_jit
def _action_values(critics: Critics, logged: Logged, steps: Array, shape: Shape) -> Array:
    return logged.logged_values(critics, steps, shape)


@eqx.filter_jit
def _advance(
    state: State,
    logged: Logged,
    table: Float[Array, "places policies*act"],
    drawn: Int[Array, "strides batch"],
    places: Int[Array, "strides batch"],
    bounds: tuple[Array, Array],
    shape: Shape,
    descent: Descent,
) -> tuple[State, Float[Array, " policies"]]:
    optimiser = descent.schedule.optimiser()
    begin, end = bounds

    def body(index: Array, carry: tuple[State, Array]) -> tuple[State, Array]:
        (online, target, average, optimiser_state), _ = carry
        step, choice = drawn[index - begin], table[places[index - begin]]
        aim = shape.per_copy(logged.targets(target, step, choice, shape))
        weight = shape.per_copy(logged.weight[logged.episode[step]].T)[:, None]

        def loss(online: Critics) -> tuple[Array, Array]:
            error = logged.action_values(online, step, shape) - aim
            losses = (weight * error**2).mean(axis=-1)
            # A sum: every network has its own gradient, whatever the others do.
            return losses.sum() / 2, losses.mean(axis=0)

        (_, losses), gradient = jax.value_and_grad(loss, has_aux=True)(online)
        updates, optimiser_state = jax.vmap(jax.vmap(optimiser.update))(gradient, optimiser_state, online)
        online = eqx.apply_updates(online, updates)
        target = _towards(target, online, descent.target_rate)
        # At first a plain average, or the start would be remembered for long.
        average = _towards(average, online, jnp.maximum(descent.averaging, 1 / (index + 1.0)))
        return State(online, target, average, optimiser_state), losses

    return jax.lax.fori_loop(begin, end, body, (state, jnp.zeros(shape.policies)))


def _towards(old: Critics, new: Critics, rate: Any) -> Critics:
    return jax.tree.map(lambda before, now: before + rate * (now - before), old, new)
