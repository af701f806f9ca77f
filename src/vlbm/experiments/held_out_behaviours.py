"""Leave one behaviour out: fit without one of the policies that logged, let its clone act, compare.

No other score without true returns sees what off-policy evaluation is for: a policy that did not log.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy.cluster.vq import kmeans2

from vlbm.data.episodes import Episodes
from vlbm.errors import InputError
from vlbm.estimand import Horizon
from vlbm.estimators.base import Estimator
from vlbm.estimators.behaviour_cloning import BehaviourCloning
from vlbm.estimators.likelihood import log_probs
from vlbm.progress import Progress, silent
from vlbm.results.metrics import rank_correlation

ROUNDS = 5  # of assigning episodes to clones
FEWEST = 2  # episodes of a behaviour: one to clone it from, one to see how well


@dataclass(frozen=True)
class HeldOutBehaviour:
    """What was estimated of a behaviour that the estimator had not seen, and what it had earned."""

    behaviour: int
    episodes: int
    estimated: float
    lower: float
    upper: float
    logged: float
    standard_error: float  # of what it had earned


@dataclass(frozen=True)
class HeldOutBehaviours:
    """One row for every behaviour that was left out."""

    rows: tuple[HeldOutBehaviour, ...]
    spread: float  # of logged returns; errors are shares of it

    @property
    def error(self) -> float:
        """Mean absolute error, as a share of the deviation of logged returns."""
        return float(np.mean([abs(row.estimated - row.logged) for row in self.rows])) / self.spread

    @property
    def rank_correlation(self) -> float:
        """Between estimated and logged returns of the behaviours; NaN below two of them."""
        if len(self.rows) < 2:
            return float("nan")
        return rank_correlation(
            np.array([row.estimated for row in self.rows]), np.array([row.logged for row in self.rows])
        )

    @property
    def covered(self) -> float:
        """The share of behaviours whose interval holds what they had earned."""
        return float(np.mean([row.lower <= row.logged <= row.upper for row in self.rows]))


def leave_one_behaviour_out(
    estimator: Estimator,
    episodes: Episodes,
    behaviours: Sequence[int] | Int[np.ndarray, " episodes"] | None = None,
    *,
    discount: float = 0.995,
    horizon: Horizon = None,
    count: int = 4,
    most: int | None = None,
    cloning: BehaviourCloning | None = None,
    seed: int = 0,
    progress: Progress = silent,
) -> HeldOutBehaviours:
    """Estimate every behaviour from the log of the others.

    `behaviours` has a number for every episode; without it, episodes are clustered into `count` behaviours.
    `most` leaves out the most frequent ones alone. Clones sample their actions, as behaviours did.
    """
    cloning = cloning or BehaviourCloning()
    if behaviours is None:
        behaviours = cluster_behaviours(episodes, count, cloning=cloning, seed=seed)
    label = np.asarray(behaviours)
    if label.shape != (episodes.count,):
        raise InputError(
            f"behaviours: has shape {label.shape}; give one number for each of the {episodes.count} episodes"
        )
    names, sizes = np.unique(label, return_counts=True)
    order = [place for place in np.argsort(-sizes, kind="stable") if sizes[place] >= FEWEST][:most]
    if len(names) < 2 or not order:
        raise InputError("behaviours: at least two are needed, one of them with two episodes or more")
    horizon = episodes.longest if horizon is None else horizon
    limit = None if np.isinf(horizon) else int(horizon)
    returns = episodes.returns(discount, horizon=limit)
    rows = []
    for name in names[order]:
        own = label == name
        clone = cloning.fit(episodes.select(own), seed=seed)
        fitted: Any = estimator.fit(
            episodes.select(~own), seed=seed, progress=progress.with_title(f"without behaviour {name}")
        )
        row = fitted.evaluate(
            {"clone": clone.policy}, discount=discount, horizon=horizon, actions="sample", seed=seed
        )[0]
        rows.append(
            HeldOutBehaviour(
                behaviour=int(name),
                episodes=int(own.sum()),
                estimated=row.value,
                lower=row.lower,
                upper=row.upper,
                logged=float(returns[own].mean()),
                standard_error=float(returns[own].std(ddof=1) / np.sqrt(own.sum())),
            )
        )
    return HeldOutBehaviours(tuple(rows), spread=float(returns.std()) or 1.0)


def cluster_behaviours(
    episodes: Episodes, count: int, *, cloning: BehaviourCloning | None = None, seed: int = 0
) -> Int[np.ndarray, " episodes"]:
    """The number of each episode's behaviour: which of `count` cloned policies most likely acted in it.

    Begins with k-means on what episodes look like, then clones a policy from every cluster and assigns
    episodes to the likeliest, a few times or until nothing changes. Clusters may run empty.
    """
    if count < 2 or count * FEWEST > episodes.count:
        raise InputError(
            f"behaviours: {count} cannot be told apart in {episodes.count} episodes; give 2 or more, each of "
            f"which has at least {FEWEST} episodes"
        )
    cloning = cloning or BehaviourCloning()
    label = _begin(_describe_episodes(episodes), count, seed)
    for _ in range(ROUNDS):
        names = [name for name in range(count) if (label == name).sum() >= FEWEST]
        likelihood = np.full((count, episodes.count), -np.inf)
        for name in names:
            clone = cloning.fit(episodes.select(label == name), seed=seed).policy
            of_step = log_probs({"clone": clone}, episodes)["clone"]
            likelihood[name] = np.add.reduceat(of_step, episodes.first_step)
        moved = likelihood.argmax(axis=0)
        if (moved == label).all():
            break
        label = moved
    return label


def _begin(described: Float[np.ndarray, "episodes features"], count: int, seed: int) -> np.ndarray:
    scale = described.std(axis=0)
    standardised = (described - described.mean(axis=0)) / np.where(scale > 0, scale, 1.0)
    return kmeans2(standardised, count, minit="++", seed=seed)[1].astype(np.int64)


def _describe_episodes(episodes: Episodes) -> Float[np.ndarray, "episodes features"]:
    """Mean and deviation of observations and actions, which policies differ by."""
    action = episodes.action if episodes.n_actions is None else np.eye(episodes.n_actions)[episodes.action]
    steps = np.concatenate([episodes.observation[episodes.observation_before], action], axis=1).astype(float)
    length = episodes.length[:, None]
    mean = np.add.reduceat(steps, episodes.first_step) / length
    square = np.add.reduceat(steps**2, episodes.first_step) / length
    return np.concatenate([mean, np.sqrt(np.maximum(square - mean**2, 0.0))], axis=1)
