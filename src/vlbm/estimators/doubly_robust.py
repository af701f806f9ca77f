"""Doubly robust estimates: a critic's value, corrected by weighted logged rewards where it is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np
from jaxtyping import Float, Int, Shaped

from vlbm.data.episodes import Episodes
from vlbm.data.outcomes import describe_left_out
from vlbm.errors import InputError
from vlbm.estimators.base import Estimator, Evaluator, Request, describe_data
from vlbm.estimators.fqe import FQE, FQEEvaluator
from vlbm.estimators.importance import ImportanceEvaluator, ImportanceSampling
from vlbm.estimators.importance_weights import (
    LARGEST_LOG_WEIGHT,
    Weights,
    rectangle,
    scaled_exponential,
    weight_warnings,
)
from vlbm.estimators.intervals import Quotients, bootstrap
from vlbm.estimators.likelihood import log_probs
from vlbm.estimators.shared_cache import SharedCache
from vlbm.estimators.transitions import Problem
from vlbm.policies.base import Policy
from vlbm.progress import Progress
from vlbm.results.estimate import Estimate, Estimates

Kind = Literal["dr", "wdr"]


class Critic(Protocol):
    """What one policy will still earn from a logged observation on; `time` is the step number, from 0."""

    def q(
        self,
        observation: Float[np.ndarray, "batch obs"],
        action: Shaped[np.ndarray, " batch *act"],
        time: Int[np.ndarray, " batch"],
    ) -> Float[np.ndarray, " batch"]:
        """After a given action."""

    def v(
        self, observation: Float[np.ndarray, "batch obs"], time: Int[np.ndarray, " batch"]
    ) -> Float[np.ndarray, " batch"]:
        """When the policy acts."""


class OnLog(NamedTuple):
    """Q of every logged action and V of every logged observation."""

    q: Float[np.ndarray, " steps"]
    v: Float[np.ndarray, " rows"]


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
        importance = settings.fit(episodes, seed=seed, progress=progress, cache=cache)
        return DoublyRobustEvaluator(
            settings=self,
            importance=importance,
            critic=self.critic.fit(episodes, seed=seed, cache=cache),
            seed=seed,
            data=describe_data(episodes),
            notes=importance.notes,
        )


@dataclass(frozen=True)
class WeightedDoublyRobust(DoublyRobust):
    """Doubly robust with self-normalised weights: slightly biased, tamer."""

    kind: Kind = "wdr"


@dataclass(frozen=True, eq=False, kw_only=True)
class DoublyRobustEvaluator(Evaluator):
    """Logged episodes with their log-probabilities, ready for critics and weights."""

    settings: DoublyRobust
    importance: ImportanceEvaluator
    critic: FQEEvaluator
    given: Mapping[str, Critic] | None = None  # critics from outside

    def with_critics(self, critics: Mapping[str, Critic]) -> DoublyRobustEvaluator:
        """The same weights, with critics that say what each policy will still earn instead of FQE's."""
        return replace(self, given=critics)

    @property
    def space(self) -> Episodes:
        return self.importance.episodes

    def estimate(self, request: Request) -> Estimates:
        """The value of every policy over at most `horizon` steps."""
        logs, named = self.importance.episodes, request.policies
        discount = request.discount
        steps = logs.longest if request.horizon is None else request.horizon
        left_out = describe_left_out(logs, ~logs.outcome_known & (logs.time < steps - 1))
        # Policies without are refused before anything is trained.
        likelihood = log_probs(named, logs, actions=request.actions)
        if self.given is None:
            believed, doubts, interruption = self._train(request, steps)
        else:
            believed, doubts, interruption = _given(named, self.given, logs), {}, []
        rows = []
        for name in named:
            weights = self.importance.weights(likelihood[name], horizon=steps)
            statistic = self._statistic(weights, believed[name], discount=discount, horizon=steps)
            rows.append(self._estimate(name, weights, statistic, doubts.get(name, ()), steps, request))
        warnings = (*left_out, *self._cut_off(steps), *interruption)
        return self.tabulate(request, rows, warnings=warnings, interrupted=bool(interruption), horizon=steps)

    def _train(
        self, request: Request, horizon: int
    ) -> tuple[dict[str, OnLog], dict[str, tuple[str, ...]], list[str]]:
        """Q and V on the log by FQE, and what speaks against them.

        With folds, every episode is judged by the critic that never saw it.
        """
        log, folds = self.importance.episodes, self.settings.folds
        problem = Problem(log, request.discount, horizon, request.actions)
        policies, seed, names = request.policies, request.seed, tuple(request.policies)
        q, v = np.zeros((len(names), log.steps)), np.zeros((len(names), len(log.observation)))
        fold = np.random.default_rng([seed, 3]).permutation(log.count) % folds
        warnings: dict[str, tuple[str, ...]] = {}
        interrupted = False
        with request.progress.shared_display(parts=folds) as progress:
            for number in range(folds):
                left_out = fold == number
                asked = problem if folds == 1 else replace(problem, held_out=left_out)
                fitted = self.critic.train(asked, policies, seed=seed, progress=progress)
                steps, rows = np.repeat(left_out, log.length), np.repeat(left_out, log.length + 1)
                within = steps[problem.step]
                q[:, problem.step[within]] = fitted.q[:, within]
                v[:, rows] = fitted.v[:, rows]
                warnings |= {name: fitted.warnings(name) for name in names}
                interrupted |= fitted.interrupted
        # What lies beyond the horizon is worth nothing, whatever a network says.
        v = np.where(problem.row_time >= horizon, 0.0, v)
        found = {name: OnLog(q[index], v[index]) for index, name in enumerate(names)}
        stopped = ["training was interrupted: values are of what was fitted so far"] * interrupted
        return found, warnings, stopped

    def _statistic(self, weights: Weights, critic: OnLog, *, discount: float, horizon: int) -> Quotients:
        """V at the beginning, and for every step the weighted error of the Bellman equation."""
        logs = self.importance.episodes
        ended = np.zeros(logs.steps, bool)
        ended[(np.cumsum(logs.length) - 1)[logs.terminated]] = True
        ended |= logs.time >= horizon - 1
        after = critic.v[logs.observation_before + 1]
        future = np.where(ended, 0.0, after)
        error = logs.reward.astype(np.float64) + discount * future - critic.q
        # Where nothing says what came of a step, the critic is believed.
        error = np.where(ended | logs.outcome_known, error, 0.0)
        error = rectangle(error, logs, horizon=horizon)
        error = error * discount ** np.arange(error.shape[1])
        beginning = critic.v[logs.first_observation][:, None]
        if self.settings.kind == "wdr":
            weight = scaled_exponential(weights.log)
            # A step without overlap adds nothing: the critic is believed from there on.
            return Quotients(
                np.concatenate([beginning, weight * error], axis=1),
                np.concatenate([np.ones_like(beginning), weight], axis=1),
                np.zeros(1 + weight.shape[1]),
            )
        log = np.minimum(weights.log, LARGEST_LOG_WEIGHT)
        largest = max(float(log.max()), 0.0)
        top = (np.exp(log - largest) * error).sum(axis=1, keepdims=True) + beginning * np.exp(-largest)
        return Quotients(top, np.ones_like(top), np.zeros(1), scale=float(np.exp(largest)))

    def _estimate(
        self,
        name: str,
        weights: Weights,
        statistic: Quotients,
        doubts: tuple[str, ...],
        horizon: int,
        request: Request,
    ) -> Estimate:
        settings, logs = self.settings, self.importance.episodes
        value, details = statistic.value, weights.details()
        reward = rectangle(logs.reward, logs, horizon=horizon)
        returns = (reward * request.discount ** np.arange(reward.shape[1])).sum(axis=1)
        interval = bootstrap(
            statistic,
            resamples=settings.resamples,
            confidence=request.confidence,
            seed=request.seed,
            kind=settings.interval,
        ).around(value)
        if not weights.overlap[-1]:
            first = int(np.argmin(weights.overlap))
            interval = interval.around(float(returns.min())).around(float(returns.max()))
            warnings = [
                f"no overlap from step {first} on: no logged episode could have come from this policy that "
                "far; the critic stands alone there, and the interval is as wide as logged returns"
            ]
        else:
            warnings = weight_warnings(weights, details)
        if settings.kind == "dr" and weights.log.max() > LARGEST_LOG_WEIGHT:
            warnings.append(
                f"weights overflow: the largest is e^{weights.log.max():.0f} and was cut at "
                f"e^{LARGEST_LOG_WEIGHT:.0f}; use wdr, or set clip"
            )
        return Estimate(
            policy=name,
            value=value,
            standard_error=interval.standard_error,
            lower=interval.lower,
            upper=interval.upper,
            returns=None,  # what the critic corrects is the average alone
            length=None,
            warnings=(*warnings, *doubts),
            details=details,
        )

    def _cut_off(self, horizon: int) -> list[str]:
        logs = self.importance.episodes
        cut = int((~logs.terminated & (logs.length < horizon)).sum())
        if not cut:
            return []
        return [
            f"{cut} of {logs.count} episodes were cut off before step {horizon}: what they would have earned "
            "after that, the critic says; a smaller horizon avoids it"
        ]


def _given(
    policies: Mapping[str, Policy], critics: Mapping[str, Critic], episodes: Episodes
) -> dict[str, OnLog]:
    """Q and V on the logs by critics from outside."""
    missing = [name for name in policies if name not in critics]
    if missing:
        raise InputError(f"critics: there is none for policy '{missing[0]}'; give one for every policy")
    before = episodes.observation[episodes.observation_before]
    rows = episodes.length + 1
    row_time = np.arange(rows.sum()) - np.repeat(np.cumsum(rows) - rows, rows)
    believed = {}
    for name in policies:
        q = np.asarray(critics[name].q(before, episodes.action, episodes.time), np.float64)
        v = np.asarray(critics[name].v(episodes.observation, row_time), np.float64)
        for what, values, count in (("q", q, episodes.steps), ("v", v, len(episodes.observation))):
            if values.shape != (count,) or not np.isfinite(values).all():
                raise InputError(
                    f"critics: {what} of policy '{name}' must give {count} finite numbers, one for each "
                    f"observation; it gave an array of shape {values.shape}"
                    + ("" if np.isfinite(values).all() else " with some that are not finite")
                )
        believed[name] = OnLog(q, v)
    return believed


def _check_settings(settings: DoublyRobust) -> None:
    for name, options in (("kind", ("dr", "wdr")), ("interval", ("bca", "percentile"))):
        if getattr(settings, name) not in options:
            raise InputError(f"setting {name}={getattr(settings, name)}: must be one of {', '.join(options)}")
    if settings.clip is not None and not (settings.clip > 0 and np.isfinite(settings.clip)):
        raise InputError(f"setting clip={settings.clip}: must be positive, or none")
    for name in ("folds", "resamples", "clone_steps"):
        if getattr(settings, name) < 1:
            raise InputError(f"setting {name}={getattr(settings, name)}: must be at least 1")
