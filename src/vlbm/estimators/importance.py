"""Importance sampling: logged returns, weighted by how much likelier the policy was to earn them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from jaxtyping import Float

from vlbm.data.episodes import Episodes
from vlbm.errors import InputError
from vlbm.estimators.base import Estimator, Evaluator, Request, describe_data
from vlbm.estimators.behaviour_cloning import BehaviourCloning, clone_once
from vlbm.estimators.importance_weights import (
    LARGEST_LOG_WEIGHT,
    Weights,
    cumulate,
    rectangle,
    scaled_exponential,
    weight_warnings,
)
from vlbm.estimators.intervals import Interval, Quotients, bernstein, bootstrap, spread_over
from vlbm.estimators.likelihood import behaviour_log_probs, log_probs
from vlbm.estimators.shared_cache import SharedCache
from vlbm.progress import Progress
from vlbm.results.estimate import Estimate, Estimates

Kind = Literal["is", "wis", "pdis", "wpdis"]
IntervalKind = Literal["bca", "percentile", "bernstein"]
SELF_NORMALISED = ("wis", "wpdis")
PER_DECISION = ("pdis", "wpdis")


@dataclass(frozen=True)
class ImportanceSampling(Estimator["ImportanceEvaluator"]):
    """The importance family, which needs random policies with log-probabilities.

    Where actions are discrete, a policy judged by its likeliest action needs none: it takes that one and no
    other. Where they are vectors, values are those of sampled actions, whatever was asked for.

    - `is`: every return times the weight of its episode. `pdis`: every reward times the weight of the
      episode up to it. Both are unbiased, and wild where policies differ.
    - `wis`, `wpdis`: the same, divided by the sum of the weights instead of their number; for `wpdis`
      step by step, where an episode that ended **carries its last weight**. Slightly biased, tamer.

    Where no logged episode could have come from a policy there is nothing to weigh: `is` and `pdis`
    then say 0, `wis` and `wpdis` the mean logged return, the interval is the range of logged returns (or
    `bounds`), and a warning says so. Where only late steps lack overlap, `pdis` counts them as 0 and
    `wpdis` takes the logged rewards as they are, with a warning. `is` and `pdis` cut weights at e^100.

    Args:
        kind: Which of the four.
        clip: Largest weight; tames the estimate and biases it. None clips nothing.
        interval: Resampled episodes (`bca`: corrected, or `percentile`), or a bound for bounded returns
            (`bernstein`).
        bounds: Smallest and largest discounted return, where they are known.
        resamples: Of the interval.
        clone_steps: Steps of training a behaviour policy, where no log-probabilities were logged.
    """

    answers_infinite_horizon: ClassVar[bool] = False  # what was never logged has no weight
    weighs_actions: ClassVar[bool] = True
    kind: Kind = "wpdis"
    clip: float | None = None
    interval: IntervalKind = "bca"
    bounds: tuple[float, float] | None = None
    resamples: int = 1000
    clone_steps: int = 2000

    def __post_init__(self) -> None:
        _check_settings(self)

    @property
    def method(self) -> str:
        return self.kind

    def learn(
        self, episodes: Episodes, *, seed: int, progress: Progress, cache: SharedCache, **_: Any
    ) -> ImportanceEvaluator:
        """Check the logged log-probabilities, or clone the behaviour policy where there are none."""
        notes = list(episodes.notes)
        if episodes.log_prob is None:
            clone = clone_once(
                BehaviourCloning(steps=self.clone_steps),
                episodes,
                seed=seed,
                cache=cache,
                progress=progress.with_title("cloning the behaviour policy"),
            )
            log_prob = clone.log_prob
            notes.append(clone.note)
        else:
            log_prob = behaviour_log_probs(episodes)
        return ImportanceEvaluator(
            settings=self,
            episodes=episodes,
            log_prob=log_prob,
            seed=seed,
            data=describe_data(episodes),
            notes=tuple(notes),
        )


@dataclass(frozen=True)
class IS(ImportanceSampling):
    """Importance sampling: every return times the weight of its whole episode."""

    kind: Kind = "is"


@dataclass(frozen=True)
class WIS(ImportanceSampling):
    """Weighted importance sampling: returns weighted by shares that add up to one."""

    kind: Kind = "wis"


@dataclass(frozen=True)
class PDIS(ImportanceSampling):
    """Per-decision importance sampling: every reward times the weight of the episode up to it."""

    kind: Kind = "pdis"


@dataclass(frozen=True)
class WPDIS(ImportanceSampling):
    """Weighted per-decision importance sampling, step by step by shares that add up to one; DOPE's IS."""

    kind: Kind = "wpdis"


@dataclass(frozen=True, eq=False, kw_only=True)
class ImportanceEvaluator(Evaluator):
    """Logged episodes with the log-probabilities of their actions, ready to be weighed."""

    settings: ImportanceSampling
    episodes: Episodes
    log_prob: Float[np.ndarray, " steps"]

    @property
    def space(self) -> Episodes:
        return self.episodes

    def estimate(self, request: Request) -> Estimates:
        """The value of every policy over at most `horizon` logged steps."""
        likelihood = log_probs(request.policies, self.episodes, actions=request.actions)
        reward = self._discounted(request.discount, request.horizon)
        rows = []
        with request.progress.task(total=len(request.policies)) as report:
            for name in request.policies:
                weights = self.weights(likelihood[name], horizon=request.horizon)
                rows.append(self._estimate(name, weights, reward, request))
                report(len(rows), None)
        return self.tabulate(request, rows, warnings=self._cut_off(request.horizon))

    def weights(self, log_prob: Float[np.ndarray, " steps"], *, horizon: int | None = None) -> Weights:
        """Weights for a policy that gives the logged actions these log-probabilities."""
        return cumulate(log_prob - self.log_prob, self.episodes, horizon=horizon, clip=self.settings.clip)

    def terms(
        self, log_prob: Float[np.ndarray, " steps"], *, discount: float, horizon: int | None = None
    ) -> Quotients:
        """What every episode contributes to the estimate for such a policy."""
        weights = self.weights(log_prob, horizon=horizon)
        return quotients(self.settings.kind, weights, self._discounted(discount, horizon))

    def _discounted(self, discount: float, horizon: int | None) -> Float[np.ndarray, "episodes steps"]:
        reward = rectangle(self.episodes.reward, self.episodes, horizon=horizon)
        return reward * discount ** np.arange(reward.shape[1])

    def _estimate(
        self, name: str, weights: Weights, reward: Float[np.ndarray, "episodes steps"], request: Request
    ) -> Estimate:
        settings, returns = self.settings, reward.sum(axis=1)
        _check_bounds(settings.bounds, returns)
        statistic = quotients(settings.kind, weights, reward)
        value, details = statistic.value, weights.details()
        overlap = weights.overlap[0 if settings.kind in PER_DECISION else -1]
        if not overlap:
            low, high = settings.bounds or (float(returns.min()), float(returns.max()))
            interval = spread_over(min(low, value), max(high, value), confidence=request.confidence)
            warnings = [_no_overlap_warning(settings)]
        else:
            warnings = _late_warnings(settings.kind, weights) or weight_warnings(weights, details)
            if settings.kind not in SELF_NORMALISED and weights.log.max() > LARGEST_LOG_WEIGHT:
                warnings.append(
                    f"weights overflow: the largest is e^{weights.log.max():.0f} and was cut at "
                    f"e^{LARGEST_LOG_WEIGHT:.0f}; use w{settings.kind}, or set clip"
                )
            interval = self._interval(statistic, weights, returns, request)
        shares = weights.shares
        length = np.minimum(self.episodes.length, reward.shape[1])
        return Estimate(
            policy=name,
            value=value,
            standard_error=interval.standard_error,
            lower=min(interval.lower, value),
            upper=max(interval.upper, value),
            returns=as_often(returns, shares),
            length=float(shares @ length),
            warnings=tuple(warnings),
            details=details,
        )

    def _interval(
        self,
        statistic: Quotients,
        weights: Weights,
        returns: Float[np.ndarray, " episodes"],
        request: Request,
    ) -> Interval:
        settings = self.settings
        if settings.bounds is not None and (settings.interval == "bernstein" or len(returns) == 1):
            weight = np.exp(np.minimum(weights.whole, LARGEST_LOG_WEIGHT))
            return bernstein(weight, returns, bounds=settings.bounds, confidence=request.confidence)
        kind: Literal["bca", "percentile"] = "percentile" if settings.interval == "percentile" else "bca"
        return bootstrap(
            statistic,
            resamples=settings.resamples,
            confidence=request.confidence,
            seed=request.seed,
            kind=kind,
        )

    def _cut_off(self, horizon: int | None) -> list[str]:
        steps = self.episodes.longest if horizon is None else horizon
        cut = int((~self.episodes.terminated & (self.episodes.length < steps)).sum())
        if not cut:
            return []
        return [
            f"{cut} of {self.episodes.count} episodes were cut off before step {steps}: what they would have "
            "earned after that counts as nothing; a smaller horizon avoids it"
        ]


def quotients(kind: Kind, weights: Weights, reward: Float[np.ndarray, "episodes steps"]) -> Quotients:
    """The estimate as a statistic of episodes; rewards are discounted already."""
    returns = reward.sum(axis=1, keepdims=True)
    if kind == "wis":
        weight = scaled_exponential(weights.whole[:, None])
        return Quotients(weight * returns, weight, returns.mean(axis=0))
    if kind == "wpdis":
        weight = scaled_exponential(weights.log)
        return Quotients(weight * reward, weight, reward.mean(axis=0))
    log = np.minimum(weights.whole[:, None] if kind == "is" else weights.log, LARGEST_LOG_WEIGHT)
    largest = float(log.max()) if np.isfinite(log.max()) else 0.0
    paid = returns if kind == "is" else reward
    top = (np.exp(log - largest) * paid).sum(axis=1, keepdims=True)
    return Quotients(top, np.ones_like(top), np.zeros(1), scale=float(np.exp(largest)))


def as_often(
    returns: Float[np.ndarray, " episodes"], shares: Float[np.ndarray, " episodes"]
) -> Float[np.ndarray, " episodes"]:
    """Logged returns, each as often as its share says: the policy's distribution of returns."""
    order = np.argsort(returns, kind="stable")
    places = (np.arange(len(returns)) + 0.5) / len(returns)
    reached = np.searchsorted(shares[order].cumsum(), places)
    return returns[order[np.minimum(reached, len(returns) - 1)]]


def _no_overlap_warning(settings: ImportanceSampling) -> str:
    value = "the mean logged return" if settings.kind in SELF_NORMALISED else "0"
    interval = "the given bounds" if settings.bounds else "the range of logged returns"
    return (
        f"no overlap: no logged episode could have come from this policy; the value found is {value} and the "
        f"interval {interval}, neither of which says anything about it"
    )


def _late_warnings(kind: Kind, weights: Weights) -> list[str]:
    if weights.overlap[-1]:
        return []
    instead = "the logged rewards stand" if kind == "wpdis" else "nothing stands"
    return [
        f"no overlap from step {int(np.argmin(weights.overlap))} on: no logged episode could have come from "
        f"this policy that far; {instead} in for what it earns there"
    ]


def _check_bounds(bounds: tuple[float, float] | None, returns: Float[np.ndarray, " episodes"]) -> None:
    if bounds is None:
        return
    slack = 1e-6 * max(bounds[1] - bounds[0], 1.0)
    if returns.min() < bounds[0] - slack or returns.max() > bounds[1] + slack:
        raise InputError(
            f"setting bounds={bounds}: logged discounted returns lie between {returns.min():g} and "
            f"{returns.max():g}; give bounds that no return can leave"
        )


def _check_settings(settings: ImportanceSampling) -> None:
    for name, known in (("kind", Kind), ("interval", IntervalKind)):
        value, options = getattr(settings, name), known.__args__  # type: ignore[attr-defined]
        if value not in options:
            raise InputError(f"setting {name}={value}: must be one of {', '.join(options)}")
    if settings.clip is not None and not (settings.clip > 0 and np.isfinite(settings.clip)):
        raise InputError(f"setting clip={settings.clip}: must be positive, or none")
    for name in ("resamples", "clone_steps"):
        if getattr(settings, name) < 1:
            raise InputError(f"setting {name}={getattr(settings, name)}: must be at least 1")
    if settings.bounds is not None and not -np.inf < settings.bounds[0] < settings.bounds[1] < np.inf:
        raise InputError(f"setting bounds={settings.bounds}: must be two numbers, the lower one first")
    if settings.interval == "bernstein" and settings.bounds is None:
        raise InputError("setting interval=bernstein: also needs bounds, between which every return lies")
