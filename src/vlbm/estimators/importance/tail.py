"""How heavy the tail of importance weights is: the shape of a generalised Pareto distribution."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

FEWEST = 5  # of the largest weights; fewer tell no shape


def pareto_shape(log_weight: Float[np.ndarray, " episodes"]) -> float | None:
    """The shape k of the largest weights: above 1 they have no mean, above 1/2 no variance.

    The largest are the top fifth, or three times the root of their number where that is less; their
    shape is found as in Pareto-smoothed importance sampling (Vehtari et al., 2024), by the estimator of
    Zhang and Stephens (2009) pulled towards 1/2. None where there are too few weights, or no tail.
    """
    count = len(log_weight)
    largest = int(min(count / 5, 3 * np.sqrt(count)))
    if largest < FEWEST:
        return None
    ordered = np.sort(log_weight)
    weight = np.exp(ordered[-largest - 1 :] - ordered[-1]) if np.isfinite(ordered[-1]) else np.zeros(1)
    excess = weight[1:] - weight[0]
    # Equal weights, such as clipped ones, are no tail.
    if len(excess) < FEWEST or excess[0] <= 0 or excess[0] == excess[-1]:
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
