"""DiagnosticsCollector: evaluates policies and collects diagnostics from the same roll-outs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from jaxtyping import Int

from vlbm.data.episodes import Episodes
from vlbm.data.view import EpisodeView
from vlbm.estimand import Horizon
from vlbm.estimators.base import Evaluator
from vlbm.estimators.world_models.evaluator import WorldEvaluator
from vlbm.experiments.evidence.latents import LOGGED, LatentMap, map_latents
from vlbm.experiments.evidence.logged import DIMENSIONS, LoggedSummary, summarise_log
from vlbm.experiments.evidence.recorder import PolicyEvidence, RolloutRecorder
from vlbm.experiments.evidence.trajectories import time_points
from vlbm.policies.base import Policy
from vlbm.results.diagnostics.calibration import Calibration, calibrate
from vlbm.results.diagnostics.support import Support
from vlbm.results.diagnostics.trust import OUTSIDE
from vlbm.results.estimates import Estimates

LATENT_EPISODES = 20  # logged episodes on the latent map


@dataclass(frozen=True, eq=False)
class ModelEvidence:
    """Diagnostics of the fitted world models."""

    histories: tuple[tuple[Mapping[str, float], ...], ...]  # entries of every world's training
    best_steps: tuple[int, ...]
    branch_weights: tuple[np.ndarray, ...] = ()
    calibration: Calibration | None = None
    latents: LatentMap | None = None


@dataclass(frozen=True, eq=False)
class Evidence:
    """Diagnostics of one method; methods without roll-outs have no policies and no model."""

    times: Int[np.ndarray, " times"]
    dimensions: Int[np.ndarray, " dims"]
    policies: Mapping[str, PolicyEvidence] = field(default_factory=dict)
    model: ModelEvidence | None = None


@dataclass(frozen=True, eq=False)
class DiagnosticsCollector:
    """The log and its summary, shared by all methods."""

    logged: Episodes | None
    discount: float
    horizon: Horizon
    summary: LoggedSummary | None

    @classmethod
    def of(cls, logged: Episodes | None, *, discount: float = 0.995, horizon: Horizon = None) -> Self:
        """Without a log, as for a saved model, there is no summary."""
        if logged is None:
            return cls(None, discount, horizon, None)
        summary = summarise_log(logged, discount=discount, horizon=horizon)
        return cls(logged, discount, horizon, summary)

    def evaluate_with_diagnostics(
        self, evaluator: Evaluator, policies: Mapping[str, Policy], **request: Any
    ) -> tuple[Estimates, Evidence]:
        """The estimates of `evaluator.evaluate(policies, **request)`, and diagnostics of them."""
        request = {**request, "discount": self.discount, "horizon": self.horizon}
        if self.summary is not None:
            times, dimensions = self.summary.times, self.summary.dimensions
        elif isinstance(evaluator, WorldEvaluator):
            steps = evaluator.horizon if self.horizon is None else self.horizon
            times = time_points(evaluator.horizon if steps == math.inf else int(steps))
            dimensions = np.arange(min(evaluator.space.observation_size, DIMENSIONS))
        else:
            return evaluator.evaluate(policies, **request), Evidence(np.zeros(1, int), np.zeros(0, int))
        recorder = RolloutRecorder(times, dimensions, self.discount, self._support(evaluator))
        estimates = evaluator.evaluate(policies, recorder=recorder, **request)
        model = self._model(evaluator, recorder) if isinstance(evaluator, WorldEvaluator) else None
        seen = recorder.summarise_policies()
        return _add_outside(estimates, seen), Evidence(times, dimensions, seen, model)

    def _support(self, evaluator: Evaluator) -> Support | None:
        """The support saved with the worlds, else that of this log."""
        if not isinstance(evaluator, WorldEvaluator):
            return None  # no roll-outs
        if evaluator.support is not None or self.logged is None:
            return evaluator.support
        return Support.of(self.logged)

    def _model(self, evaluator: WorldEvaluator, recorder: RolloutRecorder) -> ModelEvidence:
        weights = [getattr(world, "weight", None) for world in evaluator.worlds]
        return ModelEvidence(
            histories=tuple(tuple(history.entries) for history in evaluator.histories),
            best_steps=tuple(history.best_step for history in evaluator.histories),
            branch_weights=tuple(np.asarray(weight) for weight in weights if weight is not None),
            calibration=self._calibration(evaluator),
            latents=self._latents(evaluator, recorder),
        )

    def _calibration(self, evaluator: WorldEvaluator) -> Calibration | None:
        """On the held-out episodes, if these are the data that the worlds were fitted to."""
        if self.logged is None:
            return None
        fitted = evaluator.data.get("episodes"), evaluator.data.get("steps")
        same = fitted == (self.logged.count, self.logged.steps)
        log = EpisodeView.of(self.logged)
        held_out = log.split(evaluator.settings.held_out, seed=evaluator.seed)[1] if same else log
        return calibrate(evaluator.worlds, held_out)

    def _latents(self, evaluator: WorldEvaluator, recorder: RolloutRecorder) -> LatentMap | None:
        sample = recorder.sample_episodes()
        if sample is None or not hasattr(evaluator.model, "latents"):
            return None
        imagined, owner = sample
        parts = [(imagined, owner)]
        if self.logged is not None:
            some = np.random.default_rng(0).permutation(self.logged.count)[:LATENT_EPISODES]
            parts.append((self.logged.select(some), np.full(len(some), LOGGED)))
        latents, owners, returns = [], [], []
        for episodes, owner in parts:
            rows = episodes.length + 1
            latents.append(evaluator.encode(episodes))
            owners.append(np.repeat(owner, rows))
            returns.append(np.repeat(episodes.returns(self.discount), rows))
        return map_latents(np.concatenate(latents), np.concatenate(owners), np.concatenate(returns))


def _add_outside(estimates: Estimates, seen: Mapping[str, PolicyEvidence]) -> Estimates:
    """With the shares outside the log that the evaluator could not tell, so that verdicts count them."""
    rows = []
    for row in estimates:
        share = seen[row.policy].outside_share if row.policy in seen else None
        if share is not None and OUTSIDE not in row.details:
            row = replace(row, details={**row.details, OUTSIDE: share})
        rows.append(row)
    return replace(estimates, rows=tuple(rows))
