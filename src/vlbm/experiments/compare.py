"""compare(): fit and evaluate several methods on the same data and policies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vlbm.data.episodes import Episodes
from vlbm.directories import check_unused
from vlbm.errors import InputError, TrainingDivergedError
from vlbm.estimand import Actions, Estimand, Horizon
from vlbm.estimators.base import SAMPLED, Estimator, check_request, describe_excluded
from vlbm.experiments.comparison import Comparison
from vlbm.experiments.estimate_store import EstimateStore
from vlbm.experiments.evidence.collect import DiagnosticsCollector
from vlbm.experiments.executors.base import Finished
from vlbm.experiments.executors.local import LocalExecutor
from vlbm.experiments.plan import Cell, Question
from vlbm.experiments.run import run_cells
from vlbm.policies.base import Policy
from vlbm.policies.function import as_policy
from vlbm.progress import Progress, as_progress, silent
from vlbm.results.estimate import CONFIDENCE


def compare(
    episodes: Episodes,
    policies: Mapping[str, Any],
    estimators: Mapping[str, Estimator],
    *,
    seeds: Sequence[int] = (0,),
    discount: float = 0.995,
    gamma: float | None = None,
    horizon: Horizon = None,
    actions: Actions = "mean",
    confidence: float = CONFIDENCE,
    truth: Mapping[str, float] | None = None,
    task: str | None = None,
    directory: Path | None = None,
    resume: bool = False,
    progress: Progress | bool = silent,
    finished: Callable[[Comparison], None] | None = None,
    collector: DiagnosticsCollector | None = None,
    command: str | None = None,
    backtest: bool = True,
) -> Comparison:
    """Fit and evaluate every estimator with every seed; `gamma` is another name for the discount.

    All estimate the same: the return of `horizon` steps, by default as many as the longest logged episode
    has, or without a limit (`math.inf`). `truth` must be of that estimand. A method that can only estimate
    the value of sampled actions where `actions` are means reports that, and is not scored.

    A method that does not support these data, policies or estimand, or whose training diverges, is left out
    and listed in `failures`; if all fail, the first error is raised. One that cannot value some of the
    policies values the others. `finished` is called after every method.
    With a directory, every finished estimate is stored there, and with `resume` loaded instead of computed
    again; Ctrl-C ends the comparison with what is finished. What methods have in common, such as the critics
    of `dr` and `wdr`, is trained once. A `collector` collects diagnostics for the page from the first
    seed of every method, which `backtest` also holds against logged episodes.

    Args:
        episodes: The logged episodes.
        policies: By name, as `evaluate` takes them.
        estimators: Settings by name, such as `{'vlbm': VLBM(), 'fqe': FQE()}`.
        seeds: Every method runs once with each.
        discount: Weight of the next step's reward.
        gamma: Another name for the discount.
        horizon: Steps that count; by default as many as the longest logged episode has.
        actions: Whether policies act by their `mean` or `sample`.
        confidence: How surely intervals shall hold the value.
        truth: True values by policy, which score and do nothing else.
        task: What pages call the task.
        directory: Where finished estimates are kept.
        resume: Whether to take them from there.
        progress: Who reports progress; True shows bars.
        finished: Called with the comparison so far after every method.
        collector: Collects diagnostics for the page.
        command: The command line that made it, for the page.
        backtest: Whether the cloned behaviour policy is valued too and held against the log.
    """
    if not estimators:
        raise InputError("no methods were given")
    if directory is not None:
        check_unused(directory, resume=resume)
    discount = discount if gamma is None else gamma
    check_request(discount=discount, horizon=horizon, episodes=1, confidence=confidence)
    named = {name: as_policy(policy, name=f"policy '{name}'") for name, policy in policies.items()}
    estimand = Estimand.from_request(
        discount=discount, horizon=horizon, actions=actions, longest=episodes.longest
    )
    question = Question(episodes, named, estimand, collector)
    errors = find_unable(estimators, episodes, named, estimand)
    cells = [
        Cell(
            task or "",
            method,
            estimator,
            seed,
            confidence=confidence,
            backtest=backtest and seed == seeds[0],
            evidence=collector is not None and seed == seeds[0],
            title=method,
        )
        for method, estimator in estimators.items()
        for seed in seeds
        if method not in errors
    ]
    found: dict[str, dict[int, Finished]] = {method: {} for method in estimators}
    interruptions: dict[str, str] = {}
    current = ""

    def summarise() -> Comparison:
        finished = {
            method: tuple(by_seed[seed] for seed in seeds)
            for method, by_seed in found.items()
            if method not in errors and by_seed.keys() == set(seeds)
        }
        shown = {method: tuple(one.estimates for one in runs) for method, runs in finished.items()}
        if current in interruptions and found[current]:
            shown[current] = tuple(one.estimates for one in found[current].values())
        return Comparison(
            tuple(named),
            estimand,
            shown,
            {**{method: str(error) for method, error in errors.items()}, **interruptions},
            truth,
            task,
            None if collector is None else collector.summary,
            {
                method: runs[0].evidence
                for method in shown
                if (runs := list(found[method].values())) and runs[0].evidence is not None
            },
            command,
        )

    def wanted(cell: Cell) -> bool:
        """A method that failed with one seed is not tried with the others."""
        nonlocal current
        current = cell.method
        return cell.method not in errors

    try:
        for cell, outcome in run_cells(
            cells,
            lambda task: question,
            EstimateStore(question, directory, resume=resume),
            LocalExecutor(),
            wanted=wanted,
            progress=as_progress(progress),
        ):
            if isinstance(outcome, Finished):
                found[cell.method][cell.seed] = outcome
                if finished is not None and len(found[cell.method]) == len(seeds):
                    finished(summarise())
            elif isinstance(outcome.error, InputError | TrainingDivergedError):
                errors.setdefault(cell.method, outcome.error)
            else:
                assert outcome.error is not None  # it was computed in this process
                raise outcome.error
    except KeyboardInterrupt:
        if not current or not any(found.values()):
            raise
        count = len(found[current])
        interruptions[current] = f"interrupted; {count} of {len(seeds)} seeds were finished"
    comparison = summarise()
    if errors and not comparison.estimates:
        raise next(iter(errors.values()))
    return comparison


def find_unable(
    estimators: Mapping[str, Estimator],
    episodes: Episodes,
    policies: Mapping[str, Policy],
    estimand: Estimand,
) -> dict[str, Exception]:
    """Methods that cannot answer for this estimand or any of the policies: found before training."""
    errors: dict[str, Exception] = {}
    for method, estimator in estimators.items():
        try:
            estimator.exclude(policies, estimator.check_estimand(estimand, episodes))
        except InputError as error:
            errors[method] = error
    return errors


def find_notes(
    estimators: Mapping[str, Estimator],
    episodes: Episodes,
    policies: Mapping[str, Policy],
    estimand: Estimand,
) -> dict[str, list[str]]:
    """What methods that can answer will say of the question, and of policies that they leave out."""
    notes = {}
    for method, estimator in estimators.items():
        answered = estimator.check_estimand(estimand, episodes)
        notes[method] = describe_excluded(estimator.exclude(policies, answered))
        if answered != estimand:
            notes[method].insert(0, SAMPLED)
    return notes
