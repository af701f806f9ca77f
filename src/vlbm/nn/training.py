"""train(): gradient steps with progress, validation, checkpoints and resumption."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray, Scalar

from vlbm.compilation import enable_compilation_cache
from vlbm.data.sampler import MappedSampler
from vlbm.errors import TrainingDivergedError
from vlbm.nn.optimiser import Schedule
from vlbm.parallel import Devices, put_on, split_batch, uncommit, unreplicate
from vlbm.progress import Progress, silent
from vlbm.schema import check_entries, check_fields, refuse_damage
from vlbm.storage import check_identity, check_numbers, load_tree, read_information, save_tree

Model = TypeVar("Model")

# Steps per compiled call: minimum, maximum, and the number for mapped data. Progress is reported and Ctrl-C
# handled between calls.
FEWEST, MOST, MAPPED = 1, 50, 10
PATIENCE = 3.0  # target seconds per call


class LossOutput(NamedTuple):
    """A loss with its terms, and the model with updated running averages."""

    loss: Scalar
    terms: dict[str, Scalar]
    model: Any


@dataclass
class History:
    """Training history: one entry for every validation."""

    entries: list[dict[str, float]] = field(default_factory=list)
    best_step: int = 0
    best_score: float | None = None  # none before the first validation
    seconds: float = 0.0
    interrupted: bool = False

    def record(self, step: int, values: dict[str, float]) -> bool:
        """Append an entry; True if it is the best so far."""
        score = values["validation"]
        self.entries.append({"step": step, **values})
        # The first entry is the best so far even if its score is NaN.
        better = self.best_score is None or math.isnan(self.best_score) or score < self.best_score
        if better:
            self.best_step, self.best_score = step, score
        return better


def read_history(values: Any) -> History:
    """From JSON, whose types are checked."""
    history = History(**values)
    check_fields(history)
    return history


class Checkpoint(NamedTuple, Generic[Model]):
    """The state of training, and the best model so far."""

    model: Model
    best: Model
    optimiser: Any


def train(
    loss: Callable[..., LossOutput],
    model: Model,
    data: Any,
    *,
    constants: tuple[Hashable, ...] = (),
    schedule: Schedule,
    validate: Callable[[Model], float] | None,
    key: PRNGKeyArray,
    batch: Hashable = None,
    checkpoint: Path | None = None,
    resume: bool = False,
    identity: dict[str, Any] | None = None,
    devices: Devices | None = None,
    progress: Progress = silent,
) -> tuple[Model, History]:
    """The model with the best validation score, or without validation the last one, and the history.

    Every step descends `loss(model, data.draw(batch, key), key, *constants)`; without a `batch` all data are
    used. Equal constants share a compiled program. Step i draws its random numbers from `fold_in(key, i)`, so
    a resumed run equals the uninterrupted one bit for bit. A checkpoint with another `identity` is refused.
    With several shards in `devices`, batches are sharded.
    """
    enable_compilation_cache()
    devices = devices or Devices()
    optimiser_state = schedule.optimiser().init(eqx.filter(model, eqx.is_inexact_array))
    best, history, first = model, History(), 0
    identity = {**(identity or {}), "schedule": asdict(schedule)}
    if resume and checkpoint is not None and checkpoint.is_file():
        with refuse_damage(checkpoint, "remove it, or start without --resume"):
            saved = read_information(checkpoint)
            check_identity(checkpoint, saved["identity"], identity)
            check_entries(saved, {"step": int})
            restored = load_tree(checkpoint, Checkpoint(model, best, optimiser_state))
            check_numbers(checkpoint, restored)
            history, first = read_history(saved["history"]), saved["step"]
        model, best, optimiser_state = (jax.tree.map(_on_device, part) for part in restored)

    mapped = isinstance(data, MappedSampler)
    # The learning rate is an argument, so that rounds and searches with other rates compile nothing.
    unit_rate, rate = replace(schedule, learning_rate=1.0), jnp.float32(schedule.learning_rate)
    advance = _compile_steps(loss, constants, batch, unit_rate, mapped, devices.shards)

    def save(step: int) -> None:
        if checkpoint is not None:
            information = {"identity": identity, "history": asdict(history), "step": step}
            saved = unreplicate(Checkpoint(model, best, optimiser_state))
            save_tree(checkpoint, saved, information=information)

    fixed: dict[Any, Any] = {}  # data and key on every device used so far
    count = MAPPED if mapped else FEWEST
    began = time.monotonic() - history.seconds
    done = first
    with progress.task(total=schedule.steps, done=first) as report:
        try:
            while done < schedule.steps:
                begin, validation = done, done - done % schedule.validate_every + schedule.validate_every
                done = min(begin + count, validation, schedule.steps)
                with devices.acquire() as device:
                    started = time.monotonic()
                    if mapped:
                        batches = data.gather(partial(_draw_keys, key), begin=begin, count=MAPPED)
                        given = put_on((batches, key), device)
                    elif device in fixed:
                        given = fixed[device]
                    else:
                        given = fixed[device] = put_on((data, key), device)
                    model, optimiser_state = put_on((model, optimiser_state), device)
                    model, optimiser_state, terms = advance(
                        model, optimiser_state, *given, rate, jnp.int32(begin), jnp.int32(done)
                    )
                    values = {name: float(term) for name, term in terms.items()}
                    if not mapped:
                        pace = (time.monotonic() - started) / (done - begin)
                        count = min(max(int(PATIENCE / pace), FEWEST), MOST)
                    _check_finite(values, done, schedule)
                    if validate is not None and done in (validation, schedule.steps):
                        values["validation"] = float(validate(unreplicate(model)))
                        if history.record(done, values):
                            best = unreplicate(model)
                        history.seconds = time.monotonic() - began
                        save(done)
                report(done, values)
        except KeyboardInterrupt:
            devices.stop()
            history.interrupted = True
    if not history.entries:  # no validation so far
        best = unreplicate(model)
    history.seconds = time.monotonic() - began
    return uncommit(best), history


def evaluate_loss(model: Any, batch: Any, key: PRNGKeyArray, settings: Any) -> LossOutput:
    """The `loss` method of settings, which are a constant of training: a method itself has no equal."""
    return settings.loss(model, batch, key)


def _step_keys(key: PRNGKeyArray, index: Array) -> tuple[PRNGKeyArray, PRNGKeyArray]:
    """Keys for the batch of a step, and for its loss."""
    draw_key, loss_key = jax.random.split(jax.random.fold_in(key, index))
    return draw_key, loss_key


def _draw_keys(key: PRNGKeyArray, begin: int, count: int) -> PRNGKeyArray:
    return jax.vmap(lambda index: _step_keys(key, index)[0])(begin + jnp.arange(count))


# Cached, so that models with equal settings share a compiled program.
@lru_cache(maxsize=16)
def _compile_steps(
    loss: Callable[..., LossOutput],
    constants: tuple[Hashable, ...],
    batch: Hashable,
    schedule: Schedule,
    mapped: bool,
    shards: int,
) -> Callable[..., Any]:
    """Several steps in one compiled call; `schedule` is for a learning rate of 1."""
    optimiser = schedule.optimiser()

    def draw(data: Any, key: PRNGKeyArray, index: Array, begin: Array) -> Any:
        if mapped:
            return jax.tree.map(lambda leaf: leaf[index - begin], data)
        return data if batch is None else data.draw(batch, key)

    def evaluate(model: Any, drawn: Any, key: PRNGKeyArray) -> tuple[Scalar, LossOutput]:
        evaluated = loss(model, drawn, key, *constants)
        return evaluated.loss, evaluated

    # No buffer donation: if Ctrl-C interrupts a call, the model from before it is still needed.
    @eqx.filter_jit
    def advance(
        model: Any, optimiser_state: Any, data: Any, key: PRNGKeyArray, rate: Array, begin: Array, end: Array
    ):
        def step(index: Array, model: Any, optimiser_state: Any) -> tuple[Any, Any, dict[str, Scalar]]:
            draw_key, loss_key = _step_keys(key, index)
            drawn = draw(data, draw_key, index, begin)
            if batch is not None:
                drawn = split_batch(drawn, shards)
            gradient, evaluated = eqx.filter_grad(evaluate, has_aux=True)(model, drawn, loss_key)
            trained = eqx.filter(model, eqx.is_inexact_array)
            updates, optimiser_state = optimiser.update(gradient, optimiser_state, trained)
            updates = jax.tree.map(lambda update: rate * update, updates)
            return eqx.apply_updates(evaluated.model, updates), optimiser_state, evaluated.terms

        terms = eqx.filter_eval_shape(step, begin, model, optimiser_state)[2]
        start = (model, optimiser_state, jax.tree.map(lambda term: jnp.zeros(term.shape), terms))
        arrays, static = eqx.partition(start, eqx.is_array)

        def body(index: Array, arrays: Any) -> Any:
            model, optimiser_state, _ = eqx.combine(arrays, static)
            return eqx.filter(step(index, model, optimiser_state), eqx.is_array)

        return eqx.combine(jax.lax.fori_loop(begin, end, body, arrays), static)

    return advance


def _check_finite(terms: dict[str, float], step: int, schedule: Schedule) -> None:
    broken = [name for name, value in terms.items() if not math.isfinite(value)]
    if broken:
        raise TrainingDivergedError(
            f"training diverged at step {step}: {', '.join(broken)} is no longer a number; "
            f"lower learning_rate (now {schedule.learning_rate:g}) or clip (now {schedule.clip})"
        )


def _on_device(leaf: Any) -> Any:
    return jnp.asarray(leaf) if eqx.is_array_like(leaf) else leaf
