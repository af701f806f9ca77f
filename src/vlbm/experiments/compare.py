"""compare(): fit and evaluate several methods on the same data and policies."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from vlbm.data.episodes import Episodes
from vlbm.directories import check_unused
from vlbm.errors import InputError, TrainingDivergedError
from vlbm.estimand import Actions, Estimand, Horizon
from vlbm.estimators.base import SAMPLED, Estimator, check_request, describe_excluded, flatten_settings
from vlbm.estimators.shared_cache import SharedCache
from vlbm.experiments.comparison import Comparison
from vlbm.experiments.evidence.collect import DiagnosticsCollector, Evidence
from vlbm.experiments.evidence.store import load_evidence, save_evidence
from vlbm.policies.base import Policy
from vlbm.policies.function import as_policy
from vlbm.progress import Progress, as_progress, silent
from vlbm.results.estimate import CONFIDENCE, Estimates
from vlbm.storage import check_identity, read_information

CACHE_PER_SEED = 6  # entries kept for later methods: critics, and the cloned behaviour policy


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
    shown, errors = as_progress(progress), find_unable(estimators, episodes, named, estimand)
    cache = SharedCache(CACHE_PER_SEED * len(seeds))
    fingerprint = episodes.fingerprint() if directory is not None else ""
    done: dict[str, tuple[Estimates, ...]] = {}
    interruptions: dict[str, str] = {}
    evidence: dict[str, Evidence] = {}

    def summarise() -> Comparison:
        return Comparison(
            tuple(named),
            estimand,
            dict(done),
            {**{method: str(error) for method, error in errors.items()}, **interruptions},
            truth,
            task,
            None if collector is None else collector.summary,
            dict(evidence),
            command,
        )

    def run_seed(method: str, seed: int) -> Estimates:
        first = seed == seeds[0]
        place = None if directory is None else directory / f"{method}-{seed}"
        identity = identify(estimators[method], fingerprint, named, estimand, confidence)
        with_evidence = first and collector is not None
        kept = load_finished(place, identity, with_evidence=with_evidence) if resume else None
        if kept is None:
            request = {"confidence": confidence, "seed": seed, "backtest": backtest and first}
            kept = fit_and_evaluate(
                estimators[method],
                episodes,
                named,
                {**estimand.arguments, **request},
                title=method,
                directory=place,
                resume=resume,
                progress=shown,
                cache=cache,
                collector=collector if first else None,
            )
            keep_finished(place, identity, *kept)
        estimates, seen = kept
        evidence.update({} if seen is None else {method: seen})
        return estimates

    for method in estimators:
        if method in errors:
            continue
        found: list[Estimates] = []
        try:
            for seed in seeds:
                found.append(run_seed(method, seed))
                if found[-1].interrupted:
                    raise KeyboardInterrupt
        except (InputError, TrainingDivergedError) as error:
            errors[method] = error
            continue
        except KeyboardInterrupt:
            kept = tuple(part for part in found if not part.interrupted)
            if not done and not kept:
                raise
            interruptions[method] = f"interrupted; {len(kept)} of {len(seeds)} seeds were finished"
            done |= {method: kept} if kept else {}
            break
        done[method] = tuple(found)
        if finished is not None:
            finished(summarise())
    if errors and not done:
        raise next(iter(errors.values()))
    return summarise()


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


def fit_and_evaluate(
    estimator: Estimator,
    episodes: Episodes,
    policies: Mapping[str, Policy],
    request: Mapping[str, Any],
    *,
    title: str,
    directory: Path | None,
    resume: bool,
    progress: Progress,
    cache: SharedCache,
    collector: DiagnosticsCollector | None,
) -> tuple[Estimates, Evidence | None]:
    """The estimates of one method with one seed, and diagnostics of them if a collector is given."""
    began = time.process_time()
    progress = progress.of(title)
    evaluator = estimator.fit(
        episodes,
        seed=request["seed"],
        directory=directory,
        resume=resume,
        progress=progress,
        cache=cache,
    )
    request = {**request, "progress": progress.with_title("evaluating")}
    if collector is None:
        found, evidence = evaluator.evaluate(policies, **request), None
    else:
        found, evidence = collector.evaluate_with_diagnostics(evaluator, policies, **request)
    # Processor time, which other load on the machine does not affect.
    return replace(found, seconds={**found.seconds, "processor": time.process_time() - began}), evidence


def identify(
    estimator: Any,
    fingerprint: str,
    policies: Mapping[str, Policy],
    estimand: Estimand,
    confidence: float,
) -> dict[str, Any]:
    """What a finished estimate must have been made from to be taken again."""
    return {
        "settings": flatten_settings(asdict(estimator)),
        "data": fingerprint,
        "policies": list(policies),
        **vars(estimand),
        "confidence": confidence,
    }


def load_finished(
    place: Path | None, identity: dict[str, Any], *, with_evidence: bool
) -> tuple[Estimates, Evidence | None] | None:
    """What an interrupted comparison has finished of a method and seed; None if it has not."""
    if place is None:
        return None
    file, evidence_file = _name_files(place)
    if not file.is_file() or (with_evidence and not evidence_file.is_file()):
        return None
    check_identity(file, read_information(file)["identity"], identity)
    return Estimates.load(file), load_evidence(evidence_file, Evidence) if with_evidence else None


def keep_finished(
    place: Path | None, identity: dict[str, Any], estimates: Estimates, evidence: Evidence | None
) -> None:
    """Store what is finished, for `load_finished`."""
    if place is None or estimates.interrupted:
        return
    file, evidence_file = _name_files(place)
    estimates.save(file, identity=identity)
    if evidence is not None:
        save_evidence(evidence_file, evidence)


def _name_files(place: Path) -> tuple[Path, Path]:
    """The files of estimates and of their evidence."""
    return place.with_name(f"{place.name}.safetensors"), place.with_name(f"{place.name}-evidence.safetensors")
