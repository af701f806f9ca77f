"""How well estimates agree with the truth, where it is known."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float


def rank_correlation(
    estimated: Float[np.ndarray, " policies"], true: Float[np.ndarray, " policies"]
) -> float:
    """Spearman's: 1 when policies are ranked as they deserve, -1 when backwards."""
    from scipy.stats import spearmanr

    return float(spearmanr(estimated, true).statistic)


def regret(
    estimated: Float[np.ndarray, " policies"], true: Float[np.ndarray, " policies"], k: int = 1
) -> float:
    """What is lost by deploying the best of the k policies estimated best, as a share of the true range."""
    chosen = np.argsort(-estimated, kind="stable")[:k]
    return float((true.max() - true[chosen].max()) / np.ptp(true))


def absolute_error(estimated: Float[np.ndarray, " policies"], true: Float[np.ndarray, " policies"]) -> float:
    """Mean absolute difference, in units of the return."""
    return float(np.abs(estimated - true).mean())
