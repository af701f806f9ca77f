"""minimise(): gradient steps with progress, validation, checkpoints and resumption."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray, Scalar

from vlbm.compilation import keep_programs
from vlbm.devices import everywhere, gathered, placed, released, split
from vlbm.errors import TrainingDivergedError
from vlbm.progress import Progress, silent
from vlbm.schedule import Schedule
from vlbm.storage import check_identity, load_tree, read_information, save_tree
from vlbm.tracing import kept
from vlbm.workplaces import Workplace

Model = TypeVar("Model")

# Steps per compiled call: the fewest, and the most where they are quick. A call claims its memory anew, which
# takes as long as a third of a default step; progress and Ctrl-C come between calls.
FEWEST, STRIDE = 10, 50
PATIENCE = 3.0  # seconds a call may take if it makes more than the fewest steps
AHEAD = 2**26  # bytes at most of what the steps of a call learn from, drawn before the first of them


class Evaluated(NamedTuple):
    """A loss with its terms, and the model with its running averages moved on."""

    loss: Scalar
    terms: dict[str, Scalar]
    model: Any


@dataclass
class History:
    """What happened: one entry for every validation."""

    entries: list[dict[str, float]] = field(default_factory=list)
    best_step: int = 0
    best_score: float | None = None  # none before the first validation
    seconds: float = 0.0
    interrupted: bool = False

    def record(self, step: int, values: dict[str, float]) -> bool:
        """Keep an entry; True if no earlier model validated better."""
        score = values["validation"]
        self.entries.append({"step": step, **values})
        # The first model counts even when its score is not a number: there is no better one yet.
        better = self.best_score is None or math.isnan(self.best_score) or score < self.best_score
        if better:
            self.best_step, self.best_score = step, score
        return better


class Checkpoint(NamedTuple, Generic[Model]):
    """All that the next step depends on, and the best model so far."""

    model: Model
    best: Model
    optimiser: Any


@runtime_checkable
class Feed(Protocol):
    """Data that come to the device a few steps' worth at a time, stacked."""

    def stretch(self, key: PRNGKeyArray, *, begin: int, count: int) -> Any:
        """What the steps from `begin` learn from; step i may draw from `fold_in(key, i)`."""


@runtime_checkable
class Lesson(Protocol):
    """An evaluation on what is drawn from the data for every step."""

    def draw(self, data: Any, key: PRNGKeyArray) -> Any:
        """What the step that has this key learns from."""

    def __call__(self, model: Any, drawn: Any, key: PRNGKeyArray) -> Evaluated: ...


def minimise(
    evaluate: Callable[[Model, Any, PRNGKeyArray], Evaluated],
    model: Model,
    data: Any,
    *,
    schedule: Schedule,
    validate: Callable[[Model], float],
    key: PRNGKeyArray,
    checkpoint: Path | None = None,
    resume: bool = False,
    identity: dict[str, Any] | None = None,
    place: Workplace | None = None,
    progress: Progress = silent,
) -> tuple[Model, History]:
    """The model that validates best along the way, and how it came about.

    Step i draws everything from `fold_in(key, i)`, so a resumed run repeats the uninterrupted one
    bit for bit. `identity` says what a checkpoint belongs to; resuming another is refused. Where data are a
    feed, `evaluate` is given what the feed has for that step alone, and a lesson is given what it drew. In a
    place with several parts as many
    devices take a share of every batch: `evaluate` must draw the whole batch, take its `share` and divide by
    what the whole counts, so that the devices' losses add up to the loss.
    """
    keep_programs()
    place = place or Workplace()
    optimiser = schedule.optimiser(flat=True)
    trained = eqx.filter(model, eqx.is_inexact_array)
    # Adam begins with zeros, which need no program.
    optimiser_state = jax.device_put(
        jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), jax.eval_shape(optimiser.init, trained))
    )
    best, history, first = model, History(), 0
    identity = {**(identity or {}), "schedule": asdict(schedule)}
    if resume and checkpoint is not None and checkpoint.is_file():
        saved = read_information(checkpoint)
        check_identity(checkpoint, saved["identity"], identity)
        restored = load_tree(checkpoint, Checkpoint(model, best, optimiser_state))
        model, best, optimiser_state = (jax.tree.map(_on_device, part) for part in restored)
        history, first = History(**saved["history"]), saved["step"]

    feed = data if isinstance(data, Feed) else None
    advance = _advancing(evaluate, schedule, feed is not None, place.parts)

    def save(step: int) -> None:
        if checkpoint is not None:
            information = {"identity": identity, "history": asdict(history), "step": step}
            saved = gathered(Checkpoint(model, best, optimiser_state))
            save_tree(checkpoint, saved, information=information)

    fixed: dict[Any, Any] = {}  # data and key on every device that had a turn
    count = FEWEST
    began = time.monotonic() - history.seconds
    done = first
    with progress.task(total=schedule.steps, done=first) as report:
        try:
            while done < schedule.steps:
                begin, validation = done, done - done % schedule.validate_every + schedule.validate_every
                done = min(begin + count, validation, schedule.steps)
                with place.turn() as where:
                    started = time.monotonic()
                    if feed is not None:
                        given = placed((feed.stretch(key, begin=begin, count=FEWEST), key), where)
                    elif where in fixed:
                        given = fixed[where]
                    else:
                        given = fixed[where] = placed((data, key), where)
                    model, optimiser_state = placed((model, optimiser_state), where)
                    bounds = jax.device_put((np.int32(begin), np.int32(done)))
                    (model, optimiser_state), terms = advance((*given, *bounds), (model, optimiser_state))
                    values = {name: float(term) for name, term in terms.items()}
                    if feed is None:
                        pace = (time.monotonic() - started) / (done - begin)
                        count = min(max(int(PATIENCE / pace), FEWEST), STRIDE)
                    _check_finite(values, done, schedule)
                    if done in (validation, schedule.steps):
                        values["validation"] = float(validate(gathered(model)))
                        if history.record(done, values):
                            best = gathered(model)
                        history.seconds = time.monotonic() - began
                        save(done)
                report(done, values)
        except KeyboardInterrupt:
            place.stop()
            history.interrupted = True
            if not history.entries:  # too early for any validation: what there is must do
                best = gathered(model)
    history.seconds = time.monotonic() - began
    return released(best), history


@lru_cache(maxsize=16)
def _advancing(
    evaluate: Callable[[Any, Any, PRNGKeyArray], Evaluated], schedule: Schedule, fed: bool, parts: int
) -> Callable[..., Any]:
    """The compiled stretch of steps: the same function for equal arguments, so that it is traced once."""
    optimiser = schedule.optimiser(flat=True)
    lesson = evaluate if isinstance(evaluate, Lesson) and not fed else None

    def ahead(begin: Array, inputs: tuple[Any, PRNGKeyArray]) -> Any:
        """What the steps from `begin` on learn from, stacked; None if it is too much to be drawn at once."""
        data, key = inputs
        if lesson is None:
            return data if fed else None
        single = jax.tree.leaves(eqx.filter_eval_shape(lesson.draw, data, key))
        if STRIDE * sum(leaf.size * leaf.dtype.itemsize for leaf in single) > AHEAD:
            return None
        # What is drawn within a step is drawn again by the compiler wherever the step uses it.
        keys = jax.vmap(partial(jax.random.fold_in, key))(begin + jnp.arange(STRIDE))
        return jax.vmap(partial(lesson.draw, data))(keys)

    def now(index: Array, begin: Array, stack: Any, inputs: tuple[Any, PRNGKeyArray]) -> Any:
        """What one step is given, and its key."""
        data, key = inputs[0], jax.random.fold_in(inputs[1], index)
        if stack is not None:
            return jax.tree.map(lambda leaf: leaf[index - begin], stack), key
        return (data if lesson is None else lesson.draw(data, key)), key

    def step(carry: tuple[Any, Any, Any], given: Any, key: PRNGKeyArray):
        model, optimiser_state, _ = carry

        def loss(model: Any) -> tuple[Scalar, Evaluated]:
            evaluated = evaluate(model, given, key)
            return evaluated.loss, evaluated

        (_, evaluated), gradient = eqx.filter_value_and_grad(loss, has_aux=True)(model)
        gradient, terms = everywhere((gradient, evaluated.terms))
        updates, optimiser_state = optimiser.update(
            gradient, optimiser_state, eqx.filter(model, eqx.is_inexact_array)
        )
        return eqx.apply_updates(evaluated.model, updates), optimiser_state, terms

    # Several steps per call: the working memory of a step is then claimed once, not at every step.
    # Nothing is donated: Ctrl-C comes while a call runs, and the model from before it is still needed.
    @eqx.filter_jit
    def advance(fixed: tuple[Any, PRNGKeyArray, Array, Array], moving: tuple[Any, Any]):
        data, key, begin, end = fixed
        model, optimiser_state = moving

        def first_terms() -> dict[str, Scalar]:
            inputs = (data, key)
            return evaluate(model, *now(begin, begin, ahead(begin, inputs), inputs)).terms

        none = jax.tree.map(lambda term: jnp.zeros(term.shape), eqx.filter_eval_shape(first_terms))
        arrays, static = eqx.partition((model, optimiser_state, none), eqx.is_array)

        def loop(begin: Array, end: Array, arrays: Any, inputs: Any) -> Any:
            stack = ahead(begin, inputs)

            def body(index: Array, arrays: Any) -> Any:
                carry = eqx.combine(arrays, static)
                return eqx.filter(step(carry, *now(index, begin, stack, inputs)), eqx.is_array)

            return jax.lax.fori_loop(begin, end, body, arrays)

        *moved, terms = eqx.combine(split(loop, parts)(begin, end, arrays, (data, key)), static)
        return tuple(moved), terms

    # A program for several devices is bound to them.
    return kept(advance, (evaluate, schedule, fed)) if parts == 1 else advance


def _check_finite(terms: dict[str, float], step: int, schedule: Schedule) -> None:
    broken = [name for name, value in terms.items() if not math.isfinite(value)]
    if broken:
        raise TrainingDivergedError(
            f"training diverged at step {step}: {', '.join(broken)} is no longer a number; "
            f"lower learning_rate (now {schedule.learning_rate:g}) or clip (now {schedule.clip})"
        )


def _on_device(leaf: Any) -> Any:
    return jnp.asarray(leaf) if eqx.is_array_like(leaf) else leaf
