"""How well estimates agree with the truth, where it is known."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float

from vlbm.errors import InputError


def rank_correlation(
    estimated: Float[np.ndarray, " policies"], true: Float[np.ndarray, " policies"]
) -> float:
    """Spearman's: 1 for the true ranking, -1 for its reverse; ties share their rank.

    If all estimates are equal it is 0, the expectation of a random ranking; if all true returns are equal
    it is undefined, hence NaN.
    """
    from scipy.stats import rankdata

    estimated, true = _check_vectors(estimated, true)
    if np.ptp(true) == 0:
        return float("nan")
    if np.ptp(estimated) == 0:
        return 0.0
    mine, theirs = rankdata(estimated), rankdata(true)
    mine, theirs = mine - mine.mean(), theirs - theirs.mean()
    return float(mine @ theirs / np.sqrt((mine @ mine) * (theirs @ theirs)))


def regret(
    estimated: Float[np.ndarray, " policies"], true: Float[np.ndarray, " policies"], k: int = 1
) -> float:
    """What is lost by deploying the best of the k policies estimated best, as a share of the true range.

    Keeps its meaning when returns are negative; nothing is lost where all true returns are equal.
    Of equal estimates the policy that comes first is preferred.
    """
    estimated, true = _check_vectors(estimated, true)
    loss, extent = _loss(estimated, true, k), np.ptp(true)
    return float(loss / extent) if extent > 0 else 0.0


def dope_regret(
    estimated: Float[np.ndarray, " policies"], true: Float[np.ndarray, " policies"], k: int = 1
) -> float:
    """The same loss as a share of the best true return, as DOPE and the paper print it.

    NaN where even the best return is not positive: a share of that would mean nothing; see `regret`.
    """
    estimated, true = _check_vectors(estimated, true)
    return float(_loss(estimated, true, k) / true.max()) if true.max() > 0 else float("nan")


def absolute_error(estimated: Float[np.ndarray, " policies"], true: Float[np.ndarray, " policies"]) -> float:
    """Mean absolute difference, in units of the return."""
    estimated, true = _check_vectors(estimated, true, fewest=1)
    return float(np.abs(estimated - true).mean())


def normalised_absolute_error(
    estimated: Float[np.ndarray, " policies"], true: Float[np.ndarray, " policies"]
) -> float:
    """Mean absolute difference as a share of the true range; NaN where all true returns are equal."""
    estimated, true = _check_vectors(estimated, true)
    extent = np.ptp(true)
    return float(np.abs(estimated - true).mean() / extent) if extent > 0 else float("nan")


def _loss(estimated: np.ndarray, true: np.ndarray, k: int) -> float:
    if not 1 <= k <= len(true):
        raise InputError(f"regret: k={k}, but there are {len(true)} policies; give k from 1 to {len(true)}")
    chosen = np.argsort(-estimated, kind="stable")[:k]
    return float(true.max() - true[chosen].max())


def _check_vectors(estimated: Any, true: Any, *, fewest: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """Both as vectors of double precision, one finite number for each of enough policies."""
    vectors = {"estimated": np.asarray(estimated, np.float64), "true": np.asarray(true, np.float64)}
    for name, values in vectors.items():
        if values.ndim != 1:
            raise InputError(f"'{name}' has shape {values.shape}; give one return for each policy")
    mine, theirs = vectors.values()
    if len(mine) != len(theirs):
        raise InputError(f"{len(mine)} estimated returns, {len(theirs)} true ones; give both of each policy")
    if len(mine) < fewest:
        raise InputError(f"this metric compares policies and needs at least {fewest}; there are {len(mine)}")
    for name, values in vectors.items():
        if not np.isfinite(values).all():
            row = int(np.argmax(~np.isfinite(values)))
            raise InputError(
                f"the {name} return of policy {row} (from 0) is {values[row]}; leave that one out"
            )
    return mine, theirs
