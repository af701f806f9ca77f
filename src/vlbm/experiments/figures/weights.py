"""Branch weights of all fits: the paper's Figure 6."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vlbm.experiments.figures.style import COLOURS, OURS, Figure, make_canvas
from vlbm.experiments.rows import Row
from vlbm.experiments.variants import Variant, list_variants

DEAD = 1e-5  # below it the paper calls a branch killed
BINS = 20


def draw_weights(rows: Sequence[Row], suite: str) -> Figure | None:
    """How the weights are spread, and how many branches a model keeps; nothing if no model has branches."""
    own = [row for row in rows if row.suite == suite]
    found = {
        variant.label: weights
        for variant in list_variants(own)
        if (weights := list_weights([row for row in own if Variant.of(row) == variant]))
    }
    if not found:
        return None
    canvas, axes = make_canvas(4.6, 0.15 + 1.6 * len(found), len(found), 2)
    for (left, right), (label, models) in zip(axes, found.items(), strict=True):
        every = np.concatenate(models)
        left.hist(
            every, bins=BINS, range=(0, 1), weights=np.full(len(every), 100 / len(every)), color=OURS,
            alpha=0.85, edgecolor="white", linewidth=0.4,
        )  # fmt: skip
        left.set(title=label, xlabel="branch weight", ylabel="share of branches (%)", xlim=(0, 1))
        kept = np.array([int((weights >= DEAD).sum()) for weights in models])
        most = max(len(weights) for weights in models)
        counts = np.bincount(kept, minlength=most + 1)[1:] * 100 / len(models)
        right.bar(range(1, most + 1), counts, color=COLOURS[2], alpha=0.85, width=0.75)
        right.set(
            title=f"{len(models):,} model{'s' if len(models) > 1 else ''}",
            xlabel="branches kept (weight \N{GREATER-THAN OR EQUAL TO} $10^{-5}$)",
            ylabel="share of models (%)",
        )
        right.set_xticks(range(1, most + 1) if most <= 12 else range(0, most + 1, 5))
        for place in (left, right):
            place.grid(axis="x", visible=False)
    return Figure(
        name=f"branch-weights-{suite}",
        title="Branch weights over all fits",
        caption="Left: the weights of all branches of all models, like the paper's Figure 6. Right: how many "
        "branches a model keeps.",
        canvas=canvas,
    )


def list_weights(rows: Sequence[Row]) -> list[np.ndarray]:
    """The weights of every model that has several branches."""
    return [np.asarray(weights) for row in rows for weights in row.branch_weights or () if len(weights) > 1]
