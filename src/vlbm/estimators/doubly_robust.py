"""Doubly robust estimates: a critic's value, corrected by weighted logged rewards where it is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from jaxtyping import Float

from vlbm.data.episodes import Episodes
from vlbm.data.outcomes import describe_left_out
from vlbm.errors import InputError, check_counts
from vlbm.estimand import Estimand
from vlbm.estimators.base import Estimator, Evaluator
from vlbm.estimators.fqe import FQE
from vlbm.estimators.importance import ImportanceEvaluator, ImportanceSampling
from vlbm.estimators.importance_weights import (
    LARGEST_LOG_WEIGHT,
    Weights,
    describe_cut_off,
    overflow_warnings,
    rectangle,
    scaled_exponential,
    weight_warnings,
)
from vlbm.estimators.intervals import Interval, Quotients, bootstrap, estimate_from
from vlbm.estimators.likelihood import log_probs
from vlbm.estimators.shared_cache import SharedCache
from vlbm.estimators.transition_estimator import warn_if_interrupted
from vlbm.estimators.transitions import Problem
from vlbm.policies.base import Policy
from vlbm.progress import Progress
from vlbm.results.estimate import Estimate

Kind = Literal["dr", "wdr"]


@dataclass(frozen=True)
class DoublyRobust(Estimator["DoublyRobustEvaluator"]):
    """What a critic says of initial observations, plus its weighted errors along the logged episodes.

    - `dr`: unbiased when either the weights or the critic are exact, and as wild as the weights.
    - `wdr`: divides every step's sum by the sum of its weights instead of their number; slightly
      biased, tamer. An episode that ended carries its last weight.

    Policies act by sampling and need log-probabilities, or by their likeliest action where actions are
    discrete. The value is that of at most `horizon` steps; what an episode that was cut off earlier would
    have earned, the critic says. Where the weights vanish, the critic stands alone. The interval
    resamples episodes with the critic as it is; `folds` of 2 or more keep the episodes a critic was
    trained on apart from those it is corrected on, which that assumes.

    Args:
        kind: `dr` or `wdr`.
        clip: Largest weight; tames the estimate and leans it towards the critic. None clips nothing.
        folds: Parts of the log; critics are trained on the others of the part they are corrected on. 1 does
            not part it.
        interval: How resampled episodes make the interval.
        resamples: Of the interval.
        clone_steps: Steps of training a behaviour policy, where no log-probabilities were logged.
        critic: Settings of the critic.
    """

    answers_infinite_horizon: ClassVar[bool] = False
    weighs_actions: ClassVar[bool] = True
    kind: Kind = "dr"
    clip: float | None = None
    folds: int = 1
    interval: Literal["bca", "percentile"] = "bca"
    resamples: int = 1000
    clone_steps: int = 2000
    critic: FQE = field(default_factory=FQE)

    def __post_init__(self) -> None:
        _check_settings(self)

    @property
    def method(self) -> str:
        return self.kind

    def learn(
        self, episodes: Episodes, *, seed: int, progress: Progress, cache: SharedCache, **_: Any
    ) -> DoublyRobustEvaluator:
        """Find the log-probabilities of the logged actions; critics are trained with the policies."""
        if self.folds > episodes.count:
            raise InputError(f"setting folds={self.folds}: there are only {episodes.count} episodes")
        settings = ImportanceSampling(kind="pdis", clip=self.clip, clone_steps=self.clone_steps)
        importance = settings.learn(episodes, seed=seed, progress=progress, cache=cache)
        return DoublyRobustEvaluator(
            settings=self, seed=seed, log=episodes, importance=importance, notes=importance.notes
        )


@dataclass(frozen=True)
class WeightedDoublyRobust(DoublyRobust):
    """Doubly robust with self-normalised weights: slightly biased, tamer."""

    kind: Kind = "wdr"


@dataclass(frozen=True, eq=False, kw_only=True)
class DoublyRobustEvaluator(Evaluator):
    """Logged episodes with their log-probabilities, ready for critics and weights."""

    settings: DoublyRobust
    log: Episodes = field(repr=False)
    importance: ImportanceEvaluator

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
        """The value of every policy over at most `horizon` steps."""
        log, horizon = self.log, estimand.horizon
        assert horizon is not None  # settings refuse it
        left_out = describe_left_out(log, ~log.outcome_known & (log.time < horizon - 1))
        # Policies without are refused before anything is trained.
        likelihood = log_probs(policies, log, actions=estimand.actions)
        q, v, critic_warnings, interruption = self._train(policies, estimand, seed=seed, progress=progress)
        rows = []
        for index, name in enumerate(policies):
            weights = self.importance.weights(likelihood[name], horizon=horizon)
            statistic = self._correct(q[index], v[index], weights, estimand)
            interval, warnings = self._interval(
                statistic, weights, estimand, confidence=confidence, seed=seed
            )
            rows.append(
                estimate_from(
                    interval,
                    policy=name,
                    value=statistic.value,
                    warnings=(*warnings, *critic_warnings[name]),
                    details=weights.details(),
                )
            )
        consequence = "what they would have earned after that, the critic says"
        cut_off = describe_cut_off(log, horizon, consequence)
        return rows, [*left_out, *cut_off, *interruption], bool(interruption)

    def _train(
        self, policies: Mapping[str, Policy], estimand: Estimand, *, seed: int, progress: Progress
    ) -> tuple[np.ndarray, np.ndarray, dict[str, tuple[str, ...]], list[str]]:
        """Q of every logged action and V of every logged observation by FQE, and what speaks against them.

        With folds, those of every episode are by a critic that was not trained on it.
        """
        log, folds, critic = self.log, self.settings.folds, self.settings.critic
        q, v = np.zeros((len(policies), log.steps)), np.zeros((len(policies), len(log.observation)))
        fold = np.random.default_rng([seed, 3]).permutation(log.count) % folds
        warnings: dict[str, tuple[str, ...]] = {}
        interruption: list[str] = []
        with progress.shared_display(parts=folds) as shared:
            for number in range(folds):
                held_out = fold == number
                problem = Problem(log, estimand, None if folds == 1 else held_out)
                fitted = critic.train(problem, policies, seed=seed, progress=shared, cache=self.cache)
                within = held_out[log.episode_of_step[problem.step]]
                q[:, problem.step[within]] = fitted.q[:, within]
                rows = np.repeat(held_out, log.length + 1)
                # What lies beyond the horizon is worth nothing, whatever a network says.
                v[:, rows] = np.where(problem.row_time >= estimand.horizon, 0.0, fitted.v)[:, rows]
                warnings |= {name: fitted.warnings(name) for name in policies}
                interruption = interruption or warn_if_interrupted(fitted)
        return q, v, warnings, interruption

    def _correct(
        self,
        q: Float[np.ndarray, " steps"],
        v: Float[np.ndarray, " rows"],
        weights: Weights,
        estimand: Estimand,
    ) -> Quotients:
        """V(s_0) + sum over t of discount^t rho_{0:t} (r_t + discount V(s_{t+1}) - Q(s_t, a_t))."""
        log, discount, horizon = self.log, estimand.discount, estimand.horizon
        assert horizon is not None
        ended = np.zeros(log.steps, bool)
        ended[(np.cumsum(log.length) - 1)[log.terminated]] = True
        ended |= log.time >= horizon - 1
        next_v = np.where(ended, 0.0, v[log.observation_before + 1])
        error = log.reward.astype(np.float64) + discount * next_v - q
        # Where nothing says what came of a step, there is no error to correct.
        error = np.where(ended | log.outcome_known, error, 0.0)
        error = rectangle(error, log, horizon=horizon)
        error = error * discount ** np.arange(error.shape[1])
        initial = v[log.first_observation][:, None]
        if self.settings.kind == "wdr":
            rho = scaled_exponential(weights.log)
            # A step without overlap adds nothing: the critic stands alone from there on.
            return Quotients(
                np.concatenate([initial, rho * error], axis=1),
                np.concatenate([np.ones_like(initial), rho], axis=1),
                np.zeros(1 + rho.shape[1]),
            )
        log_rho = np.minimum(weights.log, LARGEST_LOG_WEIGHT)
        largest = max(float(log_rho.max()), 0.0)
        terms = (np.exp(log_rho - largest) * error).sum(axis=1) + initial[:, 0] * np.exp(-largest)
        return Quotients.mean(terms)._replace(scale=float(np.exp(largest)))

    def _interval(
        self, statistic: Quotients, weights: Weights, estimand: Estimand, *, confidence: float, seed: int
    ) -> tuple[Interval, list[str]]:
        """From resampled episodes with the critic as it is, and what speaks against the weights."""
        settings = self.settings
        interval = bootstrap(
            statistic,
            resamples=settings.resamples,
            confidence=confidence,
            seed=seed,
            kind=settings.interval,
        ).include(statistic.value)
        overflow = overflow_warnings(weights, "use wdr, or set clip") if settings.kind == "dr" else []
        if weights.overlap[-1]:
            return interval, [*weight_warnings(weights, weights.details()), *overflow]
        returns = self.log.returns(estimand.discount, horizon=estimand.horizon)
        first = int(np.argmin(weights.overlap))
        alone = (
            f"no overlap from step {first} on: no logged episode could have come from this policy that "
            "far; the critic stands alone there, and the interval is as wide as logged returns"
        )
        return interval.include(float(returns.min())).include(float(returns.max())), [alone, *overflow]


def _check_settings(settings: DoublyRobust) -> None:
    for name, options in (("kind", ("dr", "wdr")), ("interval", ("bca", "percentile"))):
        if getattr(settings, name) not in options:
            raise InputError(f"setting {name}={getattr(settings, name)}: must be one of {', '.join(options)}")
    if settings.clip is not None and not (settings.clip > 0 and np.isfinite(settings.clip)):
        raise InputError(f"setting clip={settings.clip}: must be positive, or none")
    check_counts(settings, "folds", "resamples", "clone_steps")
