"""Importance sampling: logged returns, weighted by how much likelier the policy was to earn them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from jaxtyping import Float

from vlbm.data.episodes import Episodes
from vlbm.errors import InputError, check_counts
from vlbm.estimand import Estimand
from vlbm.estimators.base import Estimator, Evaluator
from vlbm.estimators.behaviour_cloning import BehaviourCloning, clone_once
from vlbm.estimators.importance_weights import (
    LARGEST_LOG_WEIGHT,
    Weights,
    cumulate,
    describe_cut_off,
    overflow_warnings,
    rectangle,
    scaled_exponential,
    weight_warnings,
)
from vlbm.estimators.intervals import Quotients, bernstein, bootstrap, estimate_from, from_bounds
from vlbm.estimators.likelihood import behaviour_log_probs, log_probs
from vlbm.estimators.shared_cache import SharedCache
from vlbm.policies.base import Policy
from vlbm.progress import Progress
from vlbm.results.estimate import Estimate

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
        notes: tuple[str, ...] = ()
        if episodes.log_prob is not None:
            log_prob = behaviour_log_probs(episodes)
        else:
            clone = clone_once(
                BehaviourCloning(steps=self.clone_steps),
                episodes,
                seed=seed,
                cache=cache,
                progress=progress.with_title("cloning the behaviour policy"),
            )
            log_prob, notes = clone.log_prob, (clone.note,)
        return ImportanceEvaluator(settings=self, seed=seed, log=episodes, log_prob=log_prob, notes=notes)


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
    log: Episodes = field(repr=False)
    log_prob: Float[np.ndarray, " steps"]

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
        """The value of every policy over at most `horizon` logged steps."""
        assert estimand.horizon is not None  # settings refuse it
        likelihood = log_probs(policies, self.log, actions=estimand.actions)
        reward = rectangle(self.log.reward, self.log, horizon=estimand.horizon)
        reward = reward * estimand.discount ** np.arange(reward.shape[1])
        _check_bounds(self.settings.bounds, reward.sum(axis=1))
        rows = []
        with progress.task(total=len(policies)) as report:
            for name in policies:
                weights = self.weights(likelihood[name], horizon=estimand.horizon)
                rows.append(self._estimate(name, weights, reward, confidence=confidence, seed=seed))
                report(len(rows), None)
        consequence = "what they would have earned after that counts as nothing"
        return rows, describe_cut_off(self.log, estimand.horizon, consequence), False

    def weights(self, log_prob: Float[np.ndarray, " steps"], *, horizon: int | None = None) -> Weights:
        """Weights for a policy that gives the logged actions these log-probabilities."""
        return cumulate(log_prob - self.log_prob, self.log, horizon=horizon, clip=self.settings.clip)

    def _estimate(
        self,
        name: str,
        weights: Weights,
        reward: Float[np.ndarray, "episodes steps"],
        *,
        confidence: float,
        seed: int,
    ) -> Estimate:
        settings, returns = self.settings, reward.sum(axis=1)
        statistic = quotients(settings.kind, weights, reward)
        value, details = statistic.value, weights.details()
        if not weights.overlap[0 if settings.kind in PER_DECISION else -1]:
            low, high = settings.bounds or (float(returns.min()), float(returns.max()))
            interval = from_bounds(min(low, value), max(high, value), confidence=confidence)
            warnings = [_no_overlap_warning(settings)]
        else:
            warnings = _late_warnings(settings.kind, weights) or weight_warnings(weights, details)
            if settings.kind not in SELF_NORMALISED:
                warnings += overflow_warnings(weights, f"use w{settings.kind}, or set clip")
            if settings.bounds is not None and (settings.interval == "bernstein" or len(returns) == 1):
                weight = np.exp(np.minimum(weights.whole, LARGEST_LOG_WEIGHT))
                interval = bernstein(weight, returns, bounds=settings.bounds, confidence=confidence)
            else:
                kind: Literal["bca", "percentile"] = (
                    "percentile" if settings.interval == "percentile" else "bca"
                )
                interval = bootstrap(
                    statistic, resamples=settings.resamples, confidence=confidence, seed=seed, kind=kind
                )
        return estimate_from(
            interval.include(value),
            policy=name,
            value=value,
            returns=resample_returns(returns, weights.shares),
            length=float(weights.shares @ np.minimum(self.log.length, reward.shape[1])),
            warnings=warnings,
            details=details,
        )


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
    earned = returns if kind == "is" else reward
    top = (np.exp(log - largest) * earned).sum(axis=1, keepdims=True)
    return Quotients.mean(top[:, 0])._replace(scale=float(np.exp(largest)))


def resample_returns(
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
    check_counts(settings, "resamples", "clone_steps")
    if settings.bounds is not None and not -np.inf < settings.bounds[0] < settings.bounds[1] < np.inf:
        raise InputError(f"setting bounds={settings.bounds}: must be two numbers, the lower one first")
    if settings.interval == "bernstein" and settings.bounds is None:
        raise InputError("setting interval=bernstein: also needs bounds, between which every return lies")
