"""compare(): several methods on the same data and policies, side by side."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from vlbm.episodes import Episodes
from vlbm.errors import InputError
from vlbm.estimate import Estimates
from vlbm.estimators.base import Estimator, plain
from vlbm.metrics import absolute_error, rank_correlation, regret
from vlbm.policies.base import Policy
from vlbm.progress import Progress, silent
from vlbm.storage import check_identity, read_information, write_text
from vlbm.version import VERSION


@dataclass(frozen=True)
class Score:
    """How near one set of estimates came to the truth."""

    rank_correlation: float
    regret: float  # share of the true range
    absolute_error: float


@dataclass(frozen=True, eq=False)
class Comparison:
    """Estimates of the same policies by several methods, once for every seed."""

    policies: tuple[str, ...]
    estimates: Mapping[str, tuple[Estimates, ...]]  # by method
    failures: Mapping[str, str]  # methods that could not be used, and why
    truth: Mapping[str, float] | None = None
    task: str | None = None

    def values(self, method: str) -> Float[np.ndarray, " policies"]:
        """Averaged over seeds."""
        return np.mean([estimates.values for estimates in self.estimates[method]], axis=0)

    def agreement(self) -> Float[np.ndarray, "methods methods"]:
        """Rank correlation between every two methods' values: low means that they cannot all be right."""
        columns = [self.values(method) for method in self.estimates]
        found = np.array([[rank_correlation(first, second) for second in columns] for first in columns])
        # A method that says the same of all policies ranks nothing, and agrees with nobody.
        return np.nan_to_num(found, nan=0.0)

    def scores(self, method: str) -> tuple[Score, ...]:
        """One for every seed; only where the truth is known."""
        if self.truth is None:
            raise InputError("there are no true returns to score by")
        true = np.array([self.truth[name] for name in self.policies])
        return tuple(
            Score(
                rank_correlation(estimates.values, true),
                regret(estimates.values, true),
                absolute_error(estimates.values, true),
            )
            for estimates in self.estimates[method]
        )

    def seconds(self, method: str) -> float:
        """What one seed took, on average."""
        return float(np.mean([sum(estimates.seconds.values()) for estimates in self.estimates[method]]))

    def to_json(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "task": self.task,
            "policies": list(self.policies),
            "truth": None if self.truth is None else dict(self.truth),
            "methods": {
                method: {
                    "estimates": [estimates.to_json() for estimates in found],
                    "seconds": self.seconds(method),
                    **(
                        {}
                        if self.truth is None
                        else {"scores": [vars(score) for score in self.scores(method)]}
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


@dataclass(frozen=True, eq=False)
class Job:
    """What every method is asked, and where its answers are kept."""

    episodes: Episodes
    policies: Mapping[str, Policy]
    discount: float
    horizon: int | None
    actions: Literal["mean", "sample"]
    data: str  # fingerprint of the episodes
    directory: Path | None
    resume: bool
    progress: Progress

    def estimates(self, method: str, estimator: Estimator, seed: int) -> Estimates:
        """Those of an earlier run, if there are any and they may be taken; else fitted and evaluated now."""
        place = None if self.directory is None else self.directory / f"{method}-{seed}"
        file = None if place is None else place.with_suffix(".safetensors")
        asked: dict[str, Any] = {"discount": self.discount, "horizon": self.horizon, "actions": self.actions}
        settings: Any = estimator  # a dataclass, as all estimators are
        identity = {
            "settings": plain(asdict(settings)),
            "data": self.data,
            "policies": list(self.policies),
            **asked,
        }
        if self.resume and file is not None and file.is_file():
            check_identity(file, read_information(file)["identity"], identity)
            return Estimates.load(file)
        titled = self.progress.titled
        evaluator = estimator.fit(
            self.episodes, seed=seed, directory=place, resume=self.resume, progress=titled(method)
        )
        found = evaluator.evaluate(
            self.policies, seed=seed, progress=titled(f"{method}: evaluating"), **asked
        )
        if file is not None and not found.interrupted:
            found.save(file, identity=identity)
        return found


def compare(
    episodes: Episodes,
    policies: Mapping[str, Policy],
    estimators: Mapping[str, Estimator],
    *,
    seeds: Sequence[int] = (0,),
    discount: float = 0.995,
    horizon: int | None = None,
    actions: Literal["mean", "sample"] = "mean",
    truth: Mapping[str, float] | None = None,
    task: str | None = None,
    directory: Path | None = None,
    resume: bool = False,
    progress: Progress = silent,
    finished: Callable[[Comparison], None] | None = None,
) -> Comparison:
    """Fit and evaluate every estimator with every seed.

    A method that cannot be used on these data or policies is left out and the reason kept; if none
    can, the first reason is raised. `finished` is called after every method. With a directory, every
    finished estimate is kept there, and with `resume` taken from there instead of being made again;
    Ctrl-C ends the comparison with what is finished.
    """
    if not estimators:
        raise InputError("no methods were given")
    done: dict[str, tuple[Estimates, ...]] = {}
    failures: dict[str, str] = {}

    def so_far() -> Comparison:
        return Comparison(tuple(policies), dict(done), dict(failures), truth, task)

    data = episodes.fingerprint() if directory is not None else ""
    job = Job(episodes, policies, discount, horizon, actions, data, directory, resume, progress)
    for method, estimator in estimators.items():
        found: list[Estimates] = []
        try:
            for seed in seeds:
                found.append(job.estimates(method, estimator, seed))
                if found[-1].interrupted:
                    raise KeyboardInterrupt
        except InputError as error:
            failures[method] = str(error)
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
    if not done:
        raise InputError(next(iter(failures.values())))
    return so_far()
