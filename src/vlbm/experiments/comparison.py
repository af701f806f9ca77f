"""compare(): several methods on the same data and policies, side by side."""

from __future__ import annotations

import html
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from vlbm.data.episodes import Episodes
from vlbm.errors import InputError, TrainingDivergedError
from vlbm.estimand import Actions, Estimand, Horizon
from vlbm.estimators.base import Estimator, check_request, flatten_settings
from vlbm.estimators.shared_cache import SharedCache
from vlbm.experiments.evidence.collect import DiagnosticsCollector, Evidence
from vlbm.experiments.evidence.logged import LoggedSummary
from vlbm.experiments.evidence.store import load_evidence, save_evidence
from vlbm.policies.base import Policy
from vlbm.progress import Progress, silent
from vlbm.results.estimate import CONFIDENCE, Estimates, pool_seeds
from vlbm.results.metrics import absolute_error, rank_correlation, regret
from vlbm.storage import check_identity, read_information, write_text
from vlbm.version import VERSION

CACHE_PER_SEED = 4  # entries kept for later methods: features and critics


@dataclass(frozen=True)
class Score:
    """Metrics of one set of estimates against the truth."""

    rank_correlation: float  # NaN for a single policy
    regret: float  # share of the true range
    absolute_error: float

    def to_json(self) -> dict[str, float | None]:
        """NaN becomes null, which JSON has."""
        return {name: None if math.isnan(value) else value for name, value in vars(self).items()}


@dataclass(frozen=True, eq=False)
class Comparison:
    """Estimates of the same policies by several methods, once for every seed."""

    policies: tuple[str, ...]
    estimand: Estimand  # the requested one, which the truth is of
    estimates: Mapping[str, tuple[Estimates, ...]]  # by method
    failures: Mapping[str, str]  # methods that could not be used, and why
    truth: Mapping[str, float] | None = None
    task: str | None = None
    logged: LoggedSummary | None = None  # for the page
    evidence: Mapping[str, Evidence] = field(default_factory=dict)  # diagnostics by method, of the first seed
    command: str | None = None  # the command line that made it

    def matches_estimand(self, method: str) -> bool:
        """Whether a method estimates the requested estimand."""
        return all(found.estimand == self.estimand for found in self.estimates[method])

    def label(self, method: str) -> str:
        """The name of a method in tables, with how its estimand differs from the requested one."""
        if self.matches_estimand(method):
            return method
        return f"{method} ({self.estimates[method][0].estimand.describe_difference(self.estimand)})"

    def values(self, method: str) -> Float[np.ndarray, " policies"]:
        """Values averaged over seeds."""
        return np.mean([estimates.values for estimates in self.estimates[method]], axis=0)

    def pool_seeds(self, method: str) -> Estimates:
        """The estimates of all seeds, pooled."""
        return pool_seeds(self.estimates[method])

    def agreement(self) -> Float[np.ndarray, "methods methods"]:
        """Rank correlation between the values of every two methods."""
        if len(self.policies) < 2:
            return np.zeros((len(self.estimates),) * 2)
        columns = [self.values(method) for method in self.estimates]
        found = np.array([[rank_correlation(first, second) for second in columns] for first in columns])
        # Undefined for a method with equal values for all policies; counted as no agreement.
        return np.nan_to_num(found, nan=0.0)

    def scores(self, method: str) -> tuple[Score, ...]:
        """One for every seed; none if the truth is of another estimand."""
        if self.truth is None:
            raise InputError("there are no true returns to score by")
        if not self.matches_estimand(method):
            return ()
        true = np.array([self.truth[name] for name in self.policies])
        ordered = len(true) > 1
        return tuple(
            Score(
                rank_correlation(estimates.values, true) if ordered else float("nan"),
                regret(estimates.values, true) if ordered else 0.0,
                absolute_error(estimates.values, true),
            )
            for estimates in self.estimates[method]
        )

    def seconds(self, method: str) -> float:
        """Mean wall-clock time of one seed."""
        found = (estimates.seconds for estimates in self.estimates[method])
        return float(np.mean([times.get("fit", 0.0) + times.get("evaluate", 0.0) for times in found]))

    def to_json(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "task": self.task,
            "estimand": self.estimand.to_json(),
            "policies": list(self.policies),
            "truth": None if self.truth is None else dict(self.truth),
            "methods": {
                method: {
                    "estimand": found[0].estimand.to_json(),
                    "estimates": [estimates.to_json() for estimates in found],
                    "seconds": self.seconds(method),
                    **(
                        {}
                        if self.truth is None
                        else {"scores": [score.to_json() for score in self.scores(method)] or None}
                    ),
                }
                for method, found in self.estimates.items()
            },
            "agreement": {
                method: dict(zip(self.estimates, map(float, row), strict=True))
                for method, row in zip(self.estimates, self.agreement(), strict=True)
            },
            "failures": dict(self.failures),
        }

    def save_json(self, path: str | Path) -> None:
        write_text(Path(path), json.dumps(self.to_json(), indent=2) + "\n")

    def report(self, path: str | Path) -> None:
        """Write one self-contained HTML page."""
        from vlbm.report.page import write_page

        write_page(self, Path(path))

    def __str__(self) -> str:
        from vlbm.report.comparisons import as_text

        return as_text(self)

    def __repr__(self) -> str:
        return f"Comparison({len(self.policies)} policies, methods {', '.join(self.estimates) or 'none'})"

    def _repr_html_(self) -> str:
        """The tables for notebooks."""
        return f"<pre>{html.escape(str(self))}</pre>"


@dataclass(frozen=True, eq=False)
class ComparisonJob:
    """The request to every method, and where its results are stored."""

    episodes: Episodes
    policies: Mapping[str, Policy]
    estimand: Estimand
    confidence: float
    data: str  # fingerprint of the episodes
    directory: Path | None
    resume: bool
    progress: Progress
    collector: DiagnosticsCollector | None
    cache: SharedCache

    def run(
        self, method: str, estimator: Estimator, seed: int, *, with_diagnostics: bool
    ) -> tuple[Estimates, Evidence | None]:
        """Load the estimates of an interrupted run with `resume`, else fit and evaluate."""
        path = None if self.directory is None else self.directory / f"{method}-{seed}"
        file = None if path is None else path.with_suffix(".safetensors")
        request = {**self.estimand.arguments, "confidence": self.confidence}
        settings: Any = estimator  # a dataclass, as all estimators are
        identity = {
            "settings": flatten_settings(asdict(settings)),
            "data": self.data,
            "policies": list(self.policies),
            **vars(self.estimand),
            "confidence": self.confidence,
        }
        evidence_file = (
            path.with_name(f"{path.name}-evidence.safetensors")
            if with_diagnostics and path is not None
            else None
        )
        if (
            self.resume
            and file is not None
            and file.is_file()
            and (evidence_file is None or evidence_file.is_file())
        ):
            check_identity(file, read_information(file)["identity"], identity)
            return Estimates.load(file), None if evidence_file is None else load_evidence(evidence_file)
        with_title, began = self.progress.with_title, time.process_time()
        evaluator = estimator.fit(
            self.episodes,
            seed=seed,
            directory=path,
            resume=self.resume,
            progress=with_title(method),
            cache=self.cache,
        )
        request |= {"seed": seed, "progress": with_title(f"{method}: evaluating")}
        evidence = None
        if with_diagnostics and self.collector is not None:
            found, evidence = self.collector.evaluate_with_diagnostics(evaluator, self.policies, **request)
        else:
            found = evaluator.evaluate(self.policies, **request)
        # Processor time, which other load on the machine does not affect.
        found = replace(found, seconds={**found.seconds, "processor": time.process_time() - began})
        if file is not None and not found.interrupted:
            found.save(file, identity=identity)
            if evidence_file is not None:
                save_evidence(evidence_file, evidence)
        return found, evidence


def single_comparison(
    estimates: Estimates,
    *,
    truth: Mapping[str, float] | None = None,
    evidence: Evidence | None = None,
    **rest: Any,
) -> Comparison:
    """The estimates of one method as a comparison; its estimand counts as the requested one."""
    return Comparison(
        policies=tuple(row.policy for row in estimates),
        estimand=estimates.estimand,
        estimates={estimates.method: (estimates,)},
        failures={},
        truth=truth,
        evidence={} if evidence is None else {estimates.method: evidence},
        **rest,
    )


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
    progress: Progress = silent,
    finished: Callable[[Comparison], None] | None = None,
    collector: DiagnosticsCollector | None = None,
    command: str | None = None,
) -> Comparison:
    """Fit and evaluate every estimator with every seed; `gamma` is another name for the discount.

    All estimate the same: the return of `horizon` steps, by default as many as the longest logged episode
    has, or without a limit (`math.inf`). `truth` must be of that estimand. A method that can only estimate
    the value of sampled actions where `actions` are means reports that, and is not scored.

    A method that does not support these data, policies or estimand, or whose training diverges, is left out
    and listed in `failures`; if all fail, the first error is raised. `finished` is called after every method.
    With a directory, every finished estimate is stored there, and with `resume` loaded instead of computed
    again; Ctrl-C ends the comparison with what is finished. What methods have in common, such as the critics
    of `dr` and `wdr`, is trained once. A `collector` collects diagnostics for the page from the first
    seed of every method.
    """
    if not estimators:
        raise InputError("no methods were given")
    discount = discount if gamma is None else gamma
    check_request(discount=discount, horizon=horizon, episodes=1, confidence=confidence)
    estimand = Estimand.from_request(
        discount=discount, horizon=horizon, actions=actions, longest=episodes.longest
    )
    done: dict[str, tuple[Estimates, ...]] = {}
    failures: dict[str, str] = {}
    evidence: dict[str, Evidence] = {}
    logged = None if collector is None else collector.summary
    first: Exception | None = None

    def so_far() -> Comparison:
        parts = (dict(done), dict(failures), truth, task, logged, dict(evidence), command)
        return Comparison(tuple(policies), estimand, *parts)

    # Unsupported estimands are found before anything is trained.
    for method, estimator in estimators.items():
        try:
            estimator.check_estimand(estimand, episodes)
        except InputError as error:
            failures[method], first = str(error), first or error
    data = episodes.fingerprint() if directory is not None else ""
    cache = SharedCache(CACHE_PER_SEED * len(seeds))
    job = ComparisonJob(
        episodes,
        policies,
        estimand,
        confidence,
        data,
        directory,
        resume,
        progress,
        collector,
        cache,
    )
    for method, estimator in estimators.items():
        if method in failures:
            continue
        found: list[Estimates] = []
        try:
            for seed in seeds:
                with_diagnostics = collector is not None and seed == seeds[0]
                estimates, seen = job.run(method, estimator, seed, with_diagnostics=with_diagnostics)
                found.append(estimates)
                evidence |= {} if seen is None else {method: seen}
                if found[-1].interrupted:
                    raise KeyboardInterrupt
        except (InputError, TrainingDivergedError) as error:
            failures[method], first = str(error), first or error
            continue
        except KeyboardInterrupt:
            kept = tuple(part for part in found if not part.interrupted)
            if not done and not kept:
                raise
            failures[method] = f"interrupted; {len(kept)} of {len(seeds)} seeds were finished"
            done |= {method: kept} if kept else {}
            break
        done[method] = tuple(found)
        if finished is not None:
            finished(so_far())
    if first is not None and not done:
        raise first
    return so_far()
