"""What looks like a mistake in a log that can be read all the same."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Shaped

FEW = 32  # distinct whole numbers, or fewer, look like ids of actions
FIRST = 1000  # rows: a look at them often saves the look at all


def hint_at_ids(action: Shaped[np.ndarray, "steps *act"]) -> tuple[str, ...]:
    """Where vectors of one number look like ids stored as decimals."""
    if action.ndim == 1 or action.shape[1] != 1:
        return ()
    if not _are_few_ids(action[:FIRST]) or not _are_few_ids(action):
        return ()
    ids = np.unique(action).astype(int)
    if len(ids) == 1:
        return ()
    shown = ", ".join(map(str, ids[:6])) + (", ..." if len(ids) > 6 else "")
    return (
        f"actions are whole numbers ({shown}) stored as decimals and are read as amounts: if they are ids of "
        f"discrete actions, say how many there are: --n-actions {ids[-1] + 1}",
    )


def hint_at_probabilities(log_prob: Float[np.ndarray, " steps"] | None) -> tuple[str, ...]:
    """Where log-probabilities look like probabilities; those of densities may lie there and be right."""
    if log_prob is None or not look_like_probabilities(log_prob):
        return ()
    return (
        "every log-probability lies in (0, 1]: if these are probabilities and not their logarithms, give "
        "them as propensity (--column propensity=NAME)",
    )


def look_like_probabilities(log_prob: Float[np.ndarray, " steps"]) -> bool:
    return float(log_prob.min()) > 0 and float(log_prob.max()) <= 1


def _are_few_ids(action: Float[np.ndarray, "steps 1"]) -> bool:
    if (action < 0).any() or (action != np.floor(action)).any():
        return False
    return len(np.unique(action)) <= FEW
