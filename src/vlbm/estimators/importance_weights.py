"""Importance weights of logged episodes, and what they say about the overlap of two policies."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from vlbm.data.episodes import Episodes

# A weight of a sound log exceeds this one time in 10^43, for weights average to one.
LARGEST_LOG_WEIGHT = 100.0
FEW = 10.0  # fewer effective episodes than this are warned of
LARGE_SHARE = 0.5  # of the weight in one episode, or of the episodes
SOUND_MEAN = (0.1, 10.0)  # weights whose mean lies outside are warned of
TAIL = 5  # of the largest weights tell their shape; fewer do not
HEAVY = 0.7  # a Pareto shape above this is warned of: no number of episodes within reach tames such weights


@dataclass(frozen=True, eq=False)
class Weights:
    """The logarithm of every episode's weight at every step: the product of the ratios so far.

    Past its end an episode **carries its last weight**: what ended stays ended under any policy, so
    the ratios that would follow are all one. (Averaging over live episodes only would take survivors
    for everybody, and a weight of one would give ended episodes of different likelihood the same
    say.)
    """

    log: Float[np.ndarray, "episodes steps"]

    @property
    def whole(self) -> Float[np.ndarray, " episodes"]:
        """Log-weights of the whole episodes."""
        return self.log[:, -1]

    @property
    def shares(self) -> Float[np.ndarray, " episodes"]:
        """Weights of the whole episodes that sum to one; equal where all are zero."""
        scaled = scaled_exponential(self.whole[:, None])[:, 0]
        total = scaled.sum()
        return scaled / total if total > 0 else np.full(len(scaled), 1 / len(scaled))

    @property
    def overlap(self) -> Bool[np.ndarray, " steps"]:
        """At which steps any logged episode could have come from the policy."""
        return np.isfinite(self.log).any(axis=0)

    @property
    def effective_sample_size(self) -> float:
        """How many episodes of the policy itself the weighted ones are worth (Kish); 0 without overlap."""
        return 1 / float((self.shares**2).sum()) if self.overlap[-1] else 0.0

    def details(self) -> dict[str, float]:
        mean = float(np.exp(np.minimum(self.whole, LARGEST_LOG_WEIGHT)).mean())
        return {
            "effective_sample_size": self.effective_sample_size,
            "largest_weight_share": float(self.shares.max()) if self.overlap[-1] else 0.0,
            "mean_weight": mean,  # near one when the weights are sound and the episodes are enough
            "impossible_share": float(np.isneginf(self.whole).mean()),
        }


def cumulate(
    log_ratio: Float[np.ndarray, " steps"],
    episodes: Episodes,
    *,
    horizon: int | None = None,
    clip: float | None = None,
) -> Weights:
    """Weights from the log-ratio of every logged step, up to `horizon`, none above `clip`."""
    # Zeros past the end: the last weight is carried on.
    log = rectangle(log_ratio, episodes, horizon=horizon).cumsum(axis=1)
    return Weights(log if clip is None else np.minimum(log, math.log(clip)))


def rectangle(
    values: Float[np.ndarray, " steps"], episodes: Episodes, *, horizon: int | None = None
) -> Float[np.ndarray, "episodes steps"]:
    """One row per episode, zeros past its end, no more columns than `horizon`."""
    steps = int(episodes.length.max())
    out = np.zeros((episodes.count, steps))
    out[np.arange(steps) < episodes.length[:, None]] = values
    return out[:, :horizon]


def scaled_exponential(log: Float[np.ndarray, "rows columns"]) -> Float[np.ndarray, "rows columns"]:
    """Weights with the largest of every column at one; a column without overlap is zero."""
    largest = log.max(axis=0)
    return np.exp(log - np.where(np.isfinite(largest), largest, 0.0))


def weight_warnings(weights: Weights, details: Mapping[str, float]) -> list[str]:
    """What speaks against an estimate made with these weights, some of which are not zero."""
    count, found = len(weights.log), []
    effective, largest = details["effective_sample_size"], details["largest_weight_share"]
    mean, impossible = details["mean_weight"], details["impossible_share"]
    if count == 1:
        found.append("a single episode says nothing about its sampling error: no standard error, no interval")
    elif largest > LARGE_SHARE:
        found.append(f"one episode of {count} carries {largest:.0%} of the weight")
    if effective < min(FEW, count) - 1e-6:
        found.append(
            f"the {count} logged episodes are worth {effective:.1f} of this policy's: too few to trust the "
            "value or its interval"
        )
    if not SOUND_MEAN[0] <= mean <= SOUND_MEAN[1]:
        found.append(
            f"the weights average {mean:.2g}, and sound ones average 1: episodes like this policy's are "
            "missing, or log-probabilities are wrong"
        )
    shape = pareto_shape(weights.whole)
    if shape is not None and shape > HEAVY:
        found.append(
            f"the largest weights have a heavy tail (Pareto shape {shape:.1f}, sound below {HEAVY}): the "
            "mean of such weights need not exist, and the interval is too narrow"
        )
    if impossible > LARGE_SHARE:
        found.append(f"{impossible:.0%} of the episodes could not have come from this policy")
    return found


def overflow_warnings(weights: Weights, remedy: str) -> list[str]:
    """Of weights that are not divided by their sum, and were cut."""
    largest = weights.log.max()
    if largest <= LARGEST_LOG_WEIGHT:
        return []
    cut = f"the largest is e^{largest:.0f} and was cut at e^{LARGEST_LOG_WEIGHT:.0f}"
    return [f"weights overflow: {cut}; {remedy}"]


def describe_cut_off(episodes: Episodes, horizon: int, consequence: str) -> list[str]:
    """Which episodes end before the horizon without a termination."""
    cut = int((~episodes.terminated & (episodes.length < horizon)).sum())
    if not cut:
        return []
    return [
        f"{cut} of {episodes.count} episodes were cut off before step {horizon}: {consequence}; a smaller "
        "horizon avoids it"
    ]


def pareto_shape(log_weight: Float[np.ndarray, " episodes"]) -> float | None:
    """The shape k of the largest weights: above 1 they have no mean, above 1/2 no variance.

    The largest are the top fifth, or three times the root of their number where that is less; their
    shape is found as in Pareto-smoothed importance sampling (Vehtari et al., 2024), by the estimator of
    Zhang and Stephens (2009) pulled towards 1/2. None where there are too few weights, or no tail.
    """
    count = len(log_weight)
    largest = int(min(count / 5, 3 * np.sqrt(count)))
    if largest < TAIL:
        return None
    ordered = np.sort(log_weight)
    weight = np.exp(ordered[-largest - 1 :] - ordered[-1]) if np.isfinite(ordered[-1]) else np.zeros(1)
    excess = weight[1:] - weight[0]
    # Equal weights, such as clipped ones, are no tail.
    if len(excess) < TAIL or excess[0] <= 0 or excess[0] == excess[-1]:
        return None
    shape = _zhang_stephens(excess)
    return float((largest * shape + 10 * 0.5) / (largest + 10))


def _zhang_stephens(excess: Float[np.ndarray, " largest"]) -> float:
    """Excesses in rising order to a shape: an average over candidates, weighted by their likelihood."""
    count = len(excess)
    candidates = 30 + int(np.sqrt(count))
    quartile = excess[int(count / 4 + 0.5) - 1]
    theta = 1 / excess[-1] + (1 - np.sqrt(candidates / (np.arange(candidates) + 0.5))) / (3 * quartile)
    shape = np.log1p(-theta[:, None] * excess).mean(axis=1)
    likelihood = count * (np.log(-theta / shape) - shape - 1)
    share = np.exp(likelihood - likelihood.max())
    best = float((theta * share).sum() / share.sum())
    return float(np.log1p(-best * excess).mean())
