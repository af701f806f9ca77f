"""compare(): several methods on the same data and policies, side by side."""

from __future__ import annotations

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
from vlbm.estimators.base import Estimator, check_request, plain
from vlbm.estimators.cache import SharedCache
from vlbm.experiments.evidence.gathering import Evidence, Examiner
from vlbm.experiments.evidence.keeping import load_evidence, save_evidence
from vlbm.experiments.evidence.logged import LoggedSummary
from vlbm.policies.base import Policy
from vlbm.progress import Progress, silent
from vlbm.results.estimand import Actions, Estimand, Horizon
from vlbm.results.estimate import CONFIDENCE, Estimates, pooled
from vlbm.results.metrics import absolute_error, rank_correlation, regret
from vlbm.storage import check_identity, read_information, write_text
from vlbm.version import VERSION

ROOM = 4  # what is held of every seed for methods still to come: features, and critics for some of them


@dataclass(frozen=True)
class Score:
    """How near one set of estimates came to the truth."""

    rank_correlation: float  # NaN where there is nothing to rank
    regret: float  # share of the true range
    absolute_error: float

    def to_json(self) -> dict[str, float | None]:
        """JSON knows no NaN."""
        return {name: None if math.isnan(value) else value for name, value in vars(self).items()}


@dataclass(frozen=True, eq=False)
class Comparison:
    """Estimates of the same policies by several methods, once for every seed."""

    policies: tuple[str, ...]
    estimand: Estimand  # that was asked for, and that the truth is of
    estimates: Mapping[str, tuple[Estimates, ...]]  # by method
    failures: Mapping[str, str]  # methods that could not be used, and why
    truth: Mapping[str, float] | None = None
    task: str | None = None
    logged: LoggedSummary | None = None  # what the page shows beside the estimates, where it was gathered
    evidence: Mapping[str, Evidence] = field(default_factory=dict)  # by method, of the first seed
    command: str | None = None  # that made it

    def answers(self, method: str) -> bool:
        """Whether it estimates what was asked for."""
        return all(found.estimand == self.estimand for found in self.estimates[method])

    def label(self, method: str) -> str:
        """What tables call a method: with what it answers for, where that is not what was asked for."""
        if self.answers(method):
            return method
        return f"{method} ({self.estimates[method][0].estimand.differences(self.estimand)})"

    def values(self, method: str) -> Float[np.ndarray, " policies"]:
        """Averaged over seeds."""
        return np.mean([estimates.values for estimates in self.estimates[method]], axis=0)

    def pooled(self, method: str) -> Estimates:
        """One table of all seeds: mean values, with intervals that also cover how far seeds differ."""
        return pooled(self.estimates[method])

    def agreement(self) -> Float[np.ndarray, "methods methods"]:
        """Rank correlation between every two methods' values: low means that they cannot all be right."""
        if len(self.policies) < 2:  # there is no order to agree on
            return np.zeros((len(self.estimates),) * 2)
        columns = [self.values(method) for method in self.estimates]
        found = np.array([[rank_correlation(first, second) for second in columns] for first in columns])
        # A method that says the same of all policies ranks nothing, and agrees with nobody.
        return np.nan_to_num(found, nan=0.0)

    def scores(self, method: str) -> tuple[Score, ...]:
        """One for every seed, where the truth is known; none where the truth is not of what it estimates."""
        if self.truth is None:
            raise InputError("there are no true returns to score by")
        if not self.answers(method):
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
        """What one seed took by the clock, on average."""
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


@dataclass(frozen=True, eq=False)
class Job:
    """What every method is asked, and where its answers are kept."""

    episodes: Episodes
    policies: Mapping[str, Policy]
    estimand: Estimand
    confidence: float
    data: str  # fingerprint of the episodes
    directory: Path | None
    resume: bool
    progress: Progress
    examiner: Examiner | None
    cache: SharedCache

    def estimates(
        self, method: str, estimator: Estimator, seed: int, *, examined: bool
    ) -> tuple[Estimates, Evidence | None]:
        """Those of an earlier run, if there are any and they may be taken; else fitted and evaluated now."""
        place = None if self.directory is None else self.directory / f"{method}-{seed}"
        file = None if place is None else place.with_suffix(".safetensors")
        asked = {**self.estimand.question, "confidence": self.confidence}
        settings: Any = estimator  # a dataclass, as all estimators are
        identity = {
            "settings": plain(asdict(settings)),
            "data": self.data,
            "policies": list(self.policies),
            **vars(self.estimand),
            "confidence": self.confidence,
        }
        kept = (
            place.with_name(f"{place.name}-evidence.safetensors") if examined and place is not None else None
        )
        if self.resume and file is not None and file.is_file() and (kept is None or kept.is_file()):
            check_identity(file, read_information(file)["identity"], identity)
            return Estimates.load(file), None if kept is None else load_evidence(kept)
        with_title, began = self.progress.with_title, time.process_time()
        evaluator = estimator.fit(
            self.episodes,
            seed=seed,
            directory=place,
            resume=self.resume,
            progress=with_title(method),
            cache=self.cache,
        )
        asked |= {"seed": seed, "progress": with_title(f"{method}: evaluating")}
        evidence = None
        if examined and self.examiner is not None:
            found, evidence = self.examiner.examine(evaluator, self.policies, **asked)
        else:
            found = evaluator.evaluate(self.policies, **asked)
        # What other work on the machine does not disturb, unlike the clock.
        found = replace(found, seconds={**found.seconds, "processor": time.process_time() - began})
        if file is not None and not found.interrupted:
            found.save(file, identity=identity)
            if kept is not None:
                save_evidence(kept, evidence)
        return found, evidence


def alone(
    estimates: Estimates,
    *,
    truth: Mapping[str, float] | None = None,
    evidence: Evidence | None = None,
    **rest: Any,
) -> Comparison:
    """The estimates of one method, as a comparison with nobody: what it answers is what was asked for."""
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
    examiner: Examiner | None = None,
    command: str | None = None,
) -> Comparison:
    """Fit and evaluate every estimator with every seed; `gamma` is another name for the discount.

    All are asked for the same: the return of `horizon` steps, by default as many as the longest logged
    episode has, or without a limit (`math.inf`). `truth` must be of that kind. A method that can only answer
    for sampled actions where `actions` are means says so, and is not scored.

    A method that cannot be used on these data or policies, or for this question, or whose training diverges,
    is left out and the reason kept; if all are, the first reason is raised. `finished` is called after every
    method. With a directory, every finished estimate is kept there, and with `resume` taken from there
    instead of being made again; Ctrl-C ends the comparison with what is finished. What methods have in
    common, such as the critics of `dr` and `wdr`, is trained once. An `examiner` gathers evidence for a page
    from the first seed of every method.
    """
    if not estimators:
        raise InputError("no methods were given")
    discount = discount if gamma is None else gamma
    check_request(discount=discount, horizon=horizon, episodes=1, confidence=confidence)
    asked = Estimand.asked(discount=discount, horizon=horizon, actions=actions, longest=episodes.longest)
    done: dict[str, tuple[Estimates, ...]] = {}
    failures: dict[str, str] = {}
    evidence: dict[str, Evidence] = {}
    logged = None if examiner is None else examiner.summary
    first: Exception | None = None

    def so_far() -> Comparison:
        parts = (dict(done), dict(failures), truth, task, logged, dict(evidence), command)
        return Comparison(tuple(policies), asked, *parts)

    # What cannot be answered is known before anything is trained.
    for method, estimator in estimators.items():
        try:
            estimator.check_estimand(asked, episodes)
        except InputError as error:
            failures[method], first = str(error), first or error
    data = episodes.fingerprint() if directory is not None else ""
    cache = SharedCache(ROOM * len(seeds))
    job = Job(
        episodes,
        policies,
        asked,
        confidence,
        data,
        directory,
        resume,
        progress,
        examiner,
        cache,
    )
    for method, estimator in estimators.items():
        if method in failures:
            continue
        found: list[Estimates] = []
        try:
            for seed in seeds:
                examined = examiner is not None and seed == seeds[0]
                estimates, seen = job.estimates(method, estimator, seed, examined=examined)
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
