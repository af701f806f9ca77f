"""LatentMap: latents of logged and imagined steps, projected onto a plane."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from vlbm.results.diagnostics.support import subsample

POINTS = 600
LOGGED = -1  # the owner of logged steps


@dataclass(frozen=True, eq=False)
class LatentMap:
    """A point for every sampled step."""

    technique: str  # "t-SNE" or "PCA"
    points: Float[np.ndarray, "points 2"]
    owner: Int[np.ndarray, " points"]  # number of the policy, or LOGGED
    returns: Float[np.ndarray, " points"]  # of the episode that the step is from


def map_latents(
    latents: Float[np.ndarray, "steps latents"],
    owner: Int[np.ndarray, " steps"],
    returns: Float[np.ndarray, " steps"],
    *,
    points: int = POINTS,
    seed: int = 0,
) -> LatentMap:
    """Equally many steps of every owner, embedded by t-SNE, or by PCA without scikit-learn."""
    generator = np.random.default_rng(seed)
    owners = np.unique(owner)
    share = max(points // len(owners), 1)
    chosen = np.concatenate([subsample(np.flatnonzero(owner == one), share, generator) for one in owners])
    sample = latents[chosen].astype(np.float64)
    # t-SNE needs more points than neighbours.
    if importlib.util.find_spec("sklearn") is not None and len(sample) >= 30:
        technique, placed = "t-SNE", _embed_tsne(sample, seed)
    else:
        technique, placed = "PCA", project_pca(sample)
    return LatentMap(technique, placed.astype(np.float32), owner[chosen], returns[chosen])


def project_pca(sample: Float[np.ndarray, "points latents"]) -> Float[np.ndarray, "points 2"]:
    """The first two principal components, padded with zeros."""
    centred = sample - sample.mean(axis=0)
    left, size, _ = np.linalg.svd(centred, full_matrices=False)
    placed = np.zeros((len(sample), 2))
    kept = min(2, len(size))
    placed[:, :kept] = left[:, :kept] * size[:kept]
    return placed


def _embed_tsne(sample: Float[np.ndarray, "points latents"], seed: int) -> Float[np.ndarray, "points 2"]:
    from sklearn.manifold import TSNE

    spread = project_pca(sample)
    start = spread / max(float(spread[:, 0].std()), 1e-12) * 1e-4
    perplexity = min(30.0, (len(sample) - 1) / 3)
    return TSNE(init=start, perplexity=perplexity, max_iter=400, random_state=seed).fit_transform(sample)
