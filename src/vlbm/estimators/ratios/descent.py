"""Training ratio networks of all policies at once, on the same steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from vlbm.compilation import enable_compilation_cache
from vlbm.estimators.critics.bellman import Logged
from vlbm.estimators.critics.networks import Critics
from vlbm.estimators.ratios.batches import Answers, Batch, many_batches
from vlbm.estimators.ratios.functions import Reading
from vlbm.progress import Progress

STRIDE = 50  # steps per compiled call
LOOKS = 10  # how often the values are looked at
LATE = 0.2  # the part of training after which values must not change any more
PROBE = 10_000  # logged steps that a look weighs and a leap sees
FINAL = 100_000  # logged steps that a late leap sees
LATE_LEAPS = 3
CHUNK = 4096  # steps weighed at once


class Method(Protocol):
    """How networks are moved; an `eqx.Module`, for a compiled program depends on it."""

    @property
    def ratio(self) -> Reading:
        """What the outputs of the ratio networks stand for."""

    def begin(self) -> Any:
        """The state before the first step."""

    def update(
        self, state: Any, logged: Logged, batch: Batch, index: Array
    ) -> tuple[Any, Float[Array, " policies"]]:
        """The state after one more step, and a loss to show."""

    def leap(self, state: Any, logged: Logged, batches: Batch) -> Any:
        """The state with last layers where these steps would have them; batches have one more axis."""

    def answer(self, state: Any) -> Critics:
        """The ratio networks to believe."""


@dataclass(frozen=True, eq=False)
class Trained:
    """Ratio networks after training, and how it went."""

    networks: Critics
    reading: Reading
    logged: Logged
    answers: Answers
    # The value at every look, by some of the steps; last at the end.
    course: Float[np.ndarray, "looks policies"]
    steps: int  # less than were asked for when training was interrupted
    diverged: dict[int, int]  # policies whose networks left the numbers, and the last step before

    def ratios(self, steps: Int[np.ndarray, " steps"]) -> Float[np.ndarray, "policies steps"]:
        """Of logged steps, in double precision."""
        return weigh(self.networks, self.reading, self.logged, steps)


def weigh(
    networks: Critics, reading: Reading, logged: Logged, steps: Int[np.ndarray, " steps"]
) -> Float[np.ndarray, "policies steps"]:
    """The ratios of logged steps."""
    size = min(CHUNK, len(steps))
    parts = []
    for begin in range(0, len(steps), size):
        # The last part is filled up with its own last step: one shape, one program.
        part = steps[np.minimum(np.arange(begin, begin + size), len(steps) - 1)]
        found = np.asarray(_ratios(networks, reading, logged, jnp.asarray(part)), np.float64)
        parts.append(found[:, : len(steps) - begin])
    return np.concatenate(parts, axis=1)


def train(
    method: Method,
    logged: Logged,
    answers: Answers,
    *,
    steps: int,
    batch: int,
    pool: Int[np.ndarray, " usable"],
    initial: Int[np.ndarray, " episodes"],
    value: Callable[[np.ndarray, np.ndarray], np.ndarray],
    seed: int,
    progress: Progress,
) -> Trained:
    """Move the networks for so many steps.

    Steps are drawn from the `pool` and beginnings from the rows in `initial`, the same for all policies.
    `value` says what ratios of some steps make every policy worth, to be looked at on the way.
    """
    enable_compilation_cache()
    random = np.random.default_rng(seed)
    probe = random.choice(pool, min(PROBE, len(pool)), replace=False)
    before, copies = np.asarray(logged.before), max(answers.choices.copies, 1)
    state = method.begin()
    sound = method.answer(state)
    course: list[np.ndarray] = []
    diverged: dict[int, int] = {}
    done, every = 0, max(steps // LOOKS, 1)
    try:
        with progress.task(total=steps) as report:
            while done < steps:
                # Looks fall between compiled calls, so that there is no program of another length.
                begin, done = done, min(done + STRIDE, steps, done - done % every + every)
                drawn = pool[random.integers(len(pool), size=(STRIDE, batch))]
                first = initial[random.integers(len(initial), size=(STRIDE, batch))]
                rows = np.concatenate([before[drawn] + 1, first], axis=1)
                places, table = answers.places(rows, random.integers(copies, size=rows.shape), begin)
                bounds = jnp.asarray(begin), jnp.asarray(done)
                state, loss = _advance(
                    method, state, logged, table, jnp.asarray(drawn), jnp.asarray(first), places, bounds
                )
                if done % every == 0 or done == steps:
                    # Until late, leaps are for features to go on from. Positive ratios are curved, so that
                    # what one leap finds is a step towards the end.
                    late = done > (1 - LATE) * steps - every / 2
                    batches = many_batches(answers, logged, pool, initial, FINAL if late else PROBE, random)
                    for _ in range(LATE_LEAPS if late else 1):
                        state = _leap(method, state, logged, batches)
                    now = method.answer(state)
                    ratio = weigh(now, method.ratio, logged, probe)
                    fine = np.isfinite(ratio).all(axis=1)
                    for index in np.flatnonzero(~fine):
                        diverged.setdefault(int(index), begin)
                    sound = now.chosen(fine[None], sound)
                    found = value(np.where(fine[:, None], ratio, 1.0), probe)
                    course.append(np.where(fine, found, course[-1] if course else found))
                report(done, {"loss": float(jnp.mean(loss))})
    except KeyboardInterrupt:
        if not course:  # too early for any look: what there is must do
            sound = method.answer(state)
            course.append(value(np.ones((method.ratio.policies, len(probe))), probe))
    return Trained(sound, method.ratio, logged, answers, np.stack(course), done, diverged)


@eqx.filter_jit
def _ratios(networks: Critics, reading: Reading, logged: Logged, steps: Array) -> Array:
    return reading.logged(networks, logged, steps)


@eqx.filter_jit
def _leap(method: Method, state: Any, logged: Logged, batches: Batch) -> Any:
    return method.leap(state, logged, batches)


@eqx.filter_jit
def _advance(
    method: Method,
    state: Any,
    logged: Logged,
    table: Float[Array, "places policies*act"],
    drawn: Int[Array, "strides batch"],
    first: Int[Array, "strides batch"],
    places: Int[Array, "strides twice_batch"],
    bounds: tuple[Array, Array],
) -> tuple[Any, Float[Array, " policies"]]:
    begin, end = bounds
    batch = drawn.shape[1]

    def body(index: Array, carry: tuple[Any, Array]) -> tuple[Any, Array]:
        number = index - begin
        choice = table[places[number]]
        now = Batch(drawn[number], choice[:batch], first[number], choice[batch:])
        return method.update(carry[0], logged, now, index)

    return jax.lax.fori_loop(begin, end, body, (state, jnp.zeros(method.ratio.policies)))


def moved(
    optimiser: optax.GradientTransformation, gradient: Critics, state: Any, networks: Critics
) -> tuple[Critics, Any]:
    """Networks one step down their gradients, every policy's for itself."""
    updates, state = jax.vmap(jax.vmap(optimiser.update))(gradient, state, networks)
    return eqx.apply_updates(networks, updates), state


def started(optimiser: optax.GradientTransformation, networks: Critics) -> Any:
    return jax.jit(jax.vmap(jax.vmap(optimiser.init)))(networks)


def averaged(average: Any, networks: Any, index: Array, rate: float) -> Any:
    """The running average of networks; at first a plain one, or the start would be remembered for long."""
    pace = jnp.maximum(rate, 1 / (index + 1.0))
    return jax.tree.map(lambda old, new: old + pace * (new - old), average, networks)
