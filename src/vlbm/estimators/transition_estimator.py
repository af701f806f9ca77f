"""What FQE, DICE and VPM share: networks on logged transitions, trained once the policies are known."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import jax
import numpy as np

from vlbm.data.episodes import Episodes
from vlbm.errors import InputError, check_counts
from vlbm.estimand import Estimand
from vlbm.estimators.base import Estimator, Evaluator
from vlbm.estimators.shared_cache import SharedCache
from vlbm.estimators.transitions import Problem, Transitions
from vlbm.nn.optimiser import Schedule
from vlbm.parallel import run_parallel
from vlbm.policies.base import Policy
from vlbm.progress import Progress
from vlbm.results.estimate import Estimate

Trained = TypeVar("Trained")


class TransitionEstimator(Estimator["TransitionEvaluator"]):
    """Subclasses are frozen dataclasses with these fields among others."""

    units: tuple[int, ...]
    rounds: int
    steps: int
    batch: int
    learning_rate: float
    decay_rate: float
    draws: int
    resamples: int

    @abstractmethod
    def train(
        self,
        problem: Problem,
        policies: Mapping[str, Policy],
        *,
        seed: int,
        progress: Progress,
        cache: SharedCache,
    ) -> Any:
        """What trained networks say of all policies."""

    def learn(self, episodes: Episodes, *, seed: int, **_: Any) -> TransitionEvaluator:
        """Keep the data: networks belong to policies and are trained with them."""
        return TransitionEvaluator(settings=self, seed=seed, log=episodes)


@dataclass(frozen=True, eq=False, kw_only=True)
class TransitionEvaluator(Evaluator):
    """Logged episodes, ready for networks to be trained on."""

    settings: TransitionEstimator
    log: Episodes = field(repr=False)

    def estimate(
        self,
        policies: Mapping[str, Policy],
        estimand: Estimand,
        *,
        confidence: float,
        seed: int,
        progress: Progress,
        **_: Any,
    ) -> tuple[list[Estimate], list[str], bool]:
        problem, settings = Problem(self.log, estimand), self.settings
        fitted = settings.train(problem, policies, seed=seed, progress=progress, cache=self.cache)
        options = {"resamples": settings.resamples, "confidence": confidence, "seed": seed}
        rows = [fitted.estimate(name, **options) for name in policies]
        return rows, [*problem.warnings(), *warn_if_interrupted(fitted)], fitted.interrupted


def train_groups(
    train_group: Callable[..., Trained],
    data: Transitions,
    settings: TransitionEstimator,
    progress: Progress,
) -> list[Trained]:
    """`train_group(data, devices, progress=...)` for some of the policies on every device, in their order."""
    count = min(len(jax.local_devices()), data.policies)
    groups = [data.of_policies(chosen) for chosen in np.array_split(np.arange(data.policies), count)]
    with progress.shared_display(parts=len(groups) * settings.rounds) as shared:
        jobs = [partial(train_group, group, progress=shared) for group in groups]
        trained = run_parallel(jobs, batch=settings.batch)
    if len(trained) < len(groups):  # Ctrl-C came before all had begun
        raise KeyboardInterrupt
    return trained


def round_schedule(settings: TransitionEstimator, *, learning_rate: float) -> Schedule:
    """The schedule of one round of training."""
    return Schedule(
        steps=settings.steps,
        learning_rate=learning_rate,
        warm_up=min(100, settings.steps // 10),
        decay_rate=settings.decay_rate,
        clip=None,  # the norm of all policies' gradients together would make each depend on the others
    )


def check_training(settings: TransitionEstimator, rate: str) -> None:
    """Refuse settings that no networks can be trained with on transitions; `rate` names one within (0, 1]."""
    check_counts(settings, "rounds", "steps", "batch", "draws", "resamples")
    if not settings.units or min(settings.units) < 1:
        raise InputError(f"setting units={settings.units}: at least one hidden layer of one unit is needed")
    if not 0 < getattr(settings, rate) <= 1:
        raise InputError(f"setting {rate}={getattr(settings, rate)}: must be above 0 and at most 1")
    if not settings.learning_rate > 0:
        raise InputError(f"setting learning_rate={settings.learning_rate}: must be positive")


def warn_if_interrupted(fitted: Any) -> list[str]:
    return ["training was interrupted: values are of what was fitted so far"] * fitted.interrupted
