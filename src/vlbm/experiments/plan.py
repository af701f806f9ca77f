"""Plan: the cells of a comparison or a benchmark, a method with a seed on a task each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from vlbm.data.episodes import Episodes
from vlbm.estimand import Estimand
from vlbm.estimators.base import flatten_settings
from vlbm.experiments.evidence.collect import DiagnosticsCollector
from vlbm.policies.base import Policy
from vlbm.results.estimate import CONFIDENCE


@dataclass(frozen=True, eq=False)
class Question:
    """What all cells of a task have in common: the log, the policies, and which return is asked for.

    The truth is not here: nothing that is computed in a cell may see it.
    """

    episodes: Episodes
    policies: Mapping[str, Policy]
    estimand: Estimand
    collector: DiagnosticsCollector | None = None  # of diagnostics for a page

    @cached_property
    def fingerprint(self) -> str:
        return self.episodes.fingerprint()


# Questions by the name of the task; they are loaded when they are needed, for all of them may be large.
Questions = Callable[[str], Question]


@dataclass(frozen=True, eq=False)
class Cell:
    """One method with its settings and one seed, on one task."""

    task: str
    method: str  # what tables call it
    estimator: Any  # its settings
    seed: int
    preset: str = "default"
    changes: Mapping[str, Any] = field(default_factory=dict)  # settings that differ from the preset's
    confidence: float = CONFIDENCE
    backtest: bool = False
    evidence: bool = False  # whether diagnostics for a page are collected
    latents: bool = False  # whether latents of imagined steps are kept
    directory: Path | None = None  # of checkpoints
    resume: bool = False
    title: str = ""  # what progress calls it

    @property
    def group(self) -> tuple[str, int]:
        """Methods of one task and seed have critics and cloned policies in common."""
        return self.task, self.seed

    def keep_in(self, directory: Path, *, resume: bool) -> Cell:
        """The same with a place for its checkpoints."""
        return replace(self, directory=directory, resume=resume)


def plan_cells(
    tasks: Iterable[str],
    estimators: Mapping[str, Any],
    seeds: Iterable[int],
    *,
    preset: str = "default",
    presets: Mapping[str, Any] | None = None,
    **options: Any,
) -> list[Cell]:
    """Every method with every seed on every task, those of a task and seed one after the other.

    `presets` are the estimators without changes, by method: what differs from them goes into the rows.
    """
    chosen = list(seeds)
    changes = {
        method: find_changes(estimator, (presets or {}).get(method, estimator))
        for method, estimator in estimators.items()
    }
    return [
        Cell(
            task,
            method,
            estimator,
            seed,
            preset,
            changes[method],
            title=f"{task} {method} seed {seed}",
            **options,
        )
        for task in tasks
        for seed in chosen
        for method, estimator in estimators.items()
    ]


def find_changes(estimator: Any, preset: Any) -> dict[str, Any]:
    """Settings that differ from the preset's, as JSON keeps them."""
    before, now = (flatten_settings(asdict(settings)) for settings in (preset, estimator))
    return {name: value for name, value in now.items() if before.get(name) != value}
