"""Training critics on their own predictions: all policies at once, on the same steps."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from vlbm.compilation import enable_compilation_cache
from vlbm.estimators.critics.bellman import Logged, Shape
from vlbm.estimators.critics.blocks import in_blocks
from vlbm.estimators.critics.choices import Choices
from vlbm.estimators.critics.leap import leap, probe_size
from vlbm.estimators.critics.lots import ASKED, SEATS, Asked, seated
from vlbm.estimators.critics.networks import Critics
from vlbm.estimators.critics.trained import Trained, asked
from vlbm.nn.optimiser import Schedule
from vlbm.parallel import REPLICATED, make_sharding, put_on, split
from vlbm.progress import Progress

STRIDE = 50  # steps per compiled call
LOOKS = 20  # how often the values are looked at
LEAPS = 0.8  # the share of training in which last layers leap, at every second look


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
    enable_compilation_cache()
    random = np.random.default_rng(seed)
    before = np.asarray(logged.before)
    # Adam begins with zeros, which need no program.
    fresh = jax.eval_shape(jax.vmap(jax.vmap(descent.schedule.optimiser().init)), critics)
    optimiser = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), fresh)
    critics, optimiser = seated((critics, optimiser), shape)
    state = State(critics, critics, critics, optimiser)
    logged = put_on(logged, make_sharding(shape.lots))
    table = seated(choices.table(), shape) if choices.copies else None
    count = min(probe_size(critics), len(pool))
    sound = critics
    course: list[np.ndarray] = []
    diverged: dict[int, int] = {}
    steps, done = descent.schedule.steps, 0
    # Looks fall between compiled calls, so that there is no program of another length.
    every = max(steps // LOOKS, 1)
    losses: Any = np.zeros(0)
    try:
        with progress.task(total=steps) as report:
            while done < steps:
                end = min(done + STRIDE, steps, done - done % every + every)
                drawn = pool[random.integers(len(pool), size=(STRIDE, descent.batch))]
                luck = random.integers(max(choices.copies, 1), size=drawn.shape)
                choice = asked(choices, table, before[drawn] + 1, done if table is None else luck, shape)
                bounds = jnp.asarray([done, end])
                if done:  # waits for the stretch before, which went on while this one was drawn
                    report(done, {"loss": float(np.mean(losses))})
                state, losses = _advance(state, logged, choice, jnp.asarray(drawn), bounds, shape, descent)
                begin, done = done, end
                if done % every == 0 or done == steps:
                    look = done // every
                    if look % 2 == 0 and done <= LEAPS * steps:
                        probe = random.choice(pool, count, replace=False)
                        draw = look % max(choices.copies, 1)
                        choice = asked(choices, table, before[probe] + 1, draw, shape)
                        state = _corrected(state, leap(state.average, logged, probe, choice, shape), shape)
                    now = Trained(state.average, shape, logged, choices, table, np.zeros(0), done, {})
                    values = now.state_values(initial).mean(axis=-1)
                    fine = np.isfinite(values).all(axis=0)
                    for index in np.flatnonzero(~fine):
                        diverged.setdefault(int(index), begin)
                    keep = np.broadcast_to(fine, state.average.bias.shape[:2])
                    sound = state.average if fine.all() else state.average.chosen(keep, sound)
                    course.append(np.where(fine, values, course[-1] if course else now.raw(np.zeros(1))))
            report(done, {"loss": float(np.mean(losses))})
    except KeyboardInterrupt:
        if not course:  # too early for any look: what there is must do
            sound = state.average
            course.append(np.zeros((shape.models, shape.policies)))
    return Trained(sound, shape, logged, choices, table, np.stack(course), done, diverged)


@eqx.filter_jit
def _corrected(state: State, by: Float[Array, "copies policies regressors #outputs"], shape: Shape) -> State:
    return split(State.corrected, shape.lots, in_specs=(SEATS, SEATS), out_specs=SEATS)(state, by)


@eqx.filter_jit
def _advance(
    state: State,
    logged: Logged,
    choice: Asked,
    drawn: Int[Array, "strides batch"],
    bounds: Int[Array, "2"],
    shape: Shape,
    descent: Descent,
) -> tuple[State, Float[Array, "copies policies"]]:
    def own(state: State, logged: Logged, choice: Asked, drawn: Array, bounds: Array):
        answers = choice.found.reshape(*drawn.shape, shape.lot.policies, -1)
        stretch = partial(_stretch, descent, logged, drawn, bounds[0])
        losses = jnp.zeros((shape.copies, shape.lot.policies))
        return in_blocks(stretch, (state, losses), answers, bounds, shape)

    specs = (SEATS, REPLICATED, ASKED, REPLICATED, REPLICATED)
    return split(own, shape.lots, in_specs=specs, out_specs=SEATS)(state, logged, choice, drawn, bounds)


def _stretch(
    descent: Descent,
    logged: Logged,
    drawn: Int[Array, "strides batch"],
    first: Int[Array, ""],
    carried: tuple[State, Float[Array, "copies policies"]],
    answers: Float[Array, "strides batch policies act"],
    bounds: Int[Array, "2"],
    shape: Shape,
) -> tuple[State, Float[Array, "copies policies"]]:
    """Steps within bounds, of which the `first` was drawn first; the losses are those of the last."""
    optimiser = descent.schedule.optimiser()

    def body(index: Array, carried: tuple[State, Array]) -> tuple[State, Array]:
        online, target, average, optimiser_state = carried[0]
        step, answer = drawn[index - first], answers[index - first]
        aim = shape.per_copy(logged.targets(target, step, answer, shape))
        weight = shape.per_copy(logged.weight[logged.episode[step]].T)[:, None]

        def loss(online: Critics) -> tuple[Array, Array]:
            error = logged.action_values(online, step, shape) - aim
            losses = (weight * error**2).mean(axis=-1)
            # A sum: every network has its own gradient, whatever the others do.
            return losses.sum() / 2, losses

        (_, losses), gradient = jax.value_and_grad(loss, has_aux=True)(online)
        updates, optimiser_state = jax.vmap(jax.vmap(optimiser.update))(gradient, optimiser_state, online)
        online = eqx.apply_updates(online, updates)
        target = _towards(target, online, descent.target_rate)
        # At first a plain average, or the start would be remembered for long.
        average = _towards(average, online, jnp.maximum(descent.averaging, 1 / (index + 1.0)))
        return State(online, target, average, optimiser_state), losses

    return jax.lax.fori_loop(bounds[0], bounds[1], body, carried)


def _towards(old: Critics, new: Critics, rate: Any) -> Critics:
    return jax.tree.map(lambda before, now: before + rate * (now - before), old, new)
