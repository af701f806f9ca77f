"""Executor: computes cells somewhere; compute_cell() is what all of them do."""

from __future__ import annotations

import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from vlbm.directories import wait_until_free
from vlbm.errors import InputError, TrainingDivergedError, first_line
from vlbm.estimators.shared_cache import SharedCache, no_cache
from vlbm.estimators.world_models.evaluator import WorldEvaluator
from vlbm.experiments.evidence.collect import Evidence
from vlbm.experiments.evidence.recorder import RolloutRecorder
from vlbm.experiments.executors.memory import measure_peak, start_measuring
from vlbm.experiments.plan import Cell, Question, Questions
from vlbm.experiments.rows import Latents
from vlbm.progress import Progress, silent
from vlbm.results.diagnostics.support import subsample
from vlbm.results.estimates import Estimates

CACHE = 6  # entries kept for the methods of a task and seed: critics, and the cloned behaviour policy
LATENTS = 200  # steps of every policy whose latents are kept
PATIENCE = 60.0  # seconds that a process which was told to end may still hold a cell's directory


@dataclass(frozen=True, eq=False)
class Finished:
    """What a cell computed."""

    estimates: Estimates
    evidence: Evidence | None = None
    branch_weights: tuple[tuple[float, ...], ...] | None = None
    latents: Latents | None = None
    peak_memory: int | None = None  # bytes
    validation: float | None = None  # the error of predictions on held-out episodes, where worlds are learnt


@dataclass(frozen=True, eq=False)
class Failure:
    """Why a cell has no estimates. The error itself stays in the process where it was raised."""

    reason: str
    trace: str | None = None  # of errors that no user can do anything about
    error: Exception | None = field(default=None, repr=False)

    @classmethod
    def of(cls, error: Exception) -> Failure:
        if isinstance(error, InputError | TrainingDivergedError):
            return cls(str(error), None, error)
        text = "".join(traceback.format_exception(error))
        return cls(f"{type(error).__name__}: {first_line(error)}", text, error)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "error": None}


Outcome = Finished | Failure


class Executor(ABC):
    """Computes cells in any order, each once."""

    @abstractmethod
    def run(
        self, cells: Iterable[Cell], questions: Questions, progress: Progress = silent
    ) -> Iterator[tuple[Cell, Outcome]]:
        """Every cell with what came of it, as it finishes; Ctrl-C ends all of them."""


def try_cell(
    cell: Cell, question: Question, *, cache: SharedCache = no_cache, progress: Progress = silent
) -> Outcome:
    """What comes of a cell: a method that fails must not end the others."""
    try:
        return compute_cell(cell, question, cache=cache, progress=progress)
    except Exception as error:
        return Failure.of(error)


def compute_cell(
    cell: Cell, question: Question, *, cache: SharedCache = no_cache, progress: Progress = silent
) -> Finished:
    """Fit the method of a cell and evaluate all policies; Ctrl-C during training ends it."""
    # What it cannot answer is said before anything is trained.
    answered = cell.estimator.check_estimand(question.estimand, question.episodes)
    cell.estimator.exclude(question.policies, answered)
    if cell.directory is not None and cell.resume:
        wait_until_free(cell.directory, seconds=PATIENCE)
    start_measuring()
    began = time.process_time()
    progress = progress.of(cell.title)
    evaluator = cell.estimator.fit(
        question.episodes,
        seed=cell.seed,
        directory=cell.directory,
        resume=cell.resume,
        progress=progress,
        cache=cache,
    )
    histories = getattr(evaluator, "histories", ())
    if any(history.interrupted for history in histories):
        raise KeyboardInterrupt
    request = {
        **question.estimand.arguments,
        "confidence": cell.confidence,
        "seed": cell.seed,
        "backtest": cell.backtest,
        "progress": progress.with_title("evaluating"),
    }
    evidence, latents = None, None
    if cell.evidence and question.collector is not None:
        estimates, evidence = question.collector.evaluate_with_diagnostics(
            evaluator, question.policies, **request
        )
    elif cell.latents and isinstance(evaluator, WorldEvaluator) and hasattr(evaluator.model, "latents"):
        estimates, latents = _evaluate_with_latents(evaluator, question, request)
    else:
        estimates = evaluator.evaluate(question.policies, **request)
    if estimates.interrupted:
        raise KeyboardInterrupt
    seconds = {
        **estimates.seconds,
        # Processor time, which other load on the machine does not affect.
        "processor": time.process_time() - began,
        # A training that was resumed knows how long it took before.
        "fit": max([estimates.seconds.get("fit", 0.0), *(history.seconds for history in histories)]),
    }
    scores = [history.best_score for history in histories if history.best_score is not None]
    return Finished(
        estimates=replace(estimates, seconds=seconds),
        evidence=evidence,
        branch_weights=_branch_weights(evaluator),
        latents=latents,
        peak_memory=measure_peak(),
        validation=sum(scores) / len(scores) if scores else None,
    )


def _evaluate_with_latents(
    evaluator: WorldEvaluator, question: Question, request: Mapping[str, Any]
) -> tuple[Estimates, Latents | None]:
    """Estimates, and latents of some steps that every policy makes in the first world."""
    none = np.zeros(0, int)
    recorder = RolloutRecorder(none, none, question.estimand.discount)
    estimates = evaluator.evaluate(question.policies, recorder=recorder, **request)
    sample = recorder.sample_episodes()
    if sample is None:
        return estimates, None
    imagined, owner = sample
    rows = imagined.length + 1
    owners = np.repeat(owner, rows)
    returns = np.repeat(imagined.returns(question.estimand.discount), rows)
    generator = np.random.default_rng(0)
    places = [subsample(np.flatnonzero(owners == one), LATENTS, generator) for one in np.unique(owner)]
    chosen = np.sort(np.concatenate(places))
    latent = np.asarray(evaluator.encode(imagined))[chosen]
    return estimates, Latents(latent, owners[chosen], returns[chosen])


def _branch_weights(evaluator: Any) -> tuple[tuple[float, ...], ...] | None:
    """How much every branch of every model counts."""
    weights = [getattr(world, "weight", None) for world in getattr(evaluator, "worlds", ())]
    found = [tuple(map(float, np.ravel(weight))) for weight in weights if weight is not None]
    return tuple(found) or None
