"""Steps whose outcome was not recorded: how much reward goes with them where a method must leave them out."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool

from vlbm.data.episodes import Episodes
from vlbm.errors import InputError

MOST = 0.1  # of the reward: a method that would leave out more would answer another question


def share_of_reward(episodes: Episodes, left_out: Bool[np.ndarray, " steps"]) -> float:
    """How much of the absolute reward was earned at those steps."""
    total = float(np.abs(episodes.reward).sum(dtype=np.float64))
    lost = float(np.abs(episodes.reward[left_out]).sum(dtype=np.float64))
    return lost / total if total > 0 else 0.0


def describe_left_out(episodes: Episodes, left_out: Bool[np.ndarray, " steps"]) -> list[str]:
    """What to say of steps left out because their outcome is unknown; too much reward is an error."""
    count = int(left_out.sum())
    if count == 0:
        return []
    share = share_of_reward(episodes, left_out)
    if share > MOST or count == episodes.steps:
        raise InputError(
            f"terminated: for {count} of {episodes.count} episodes nothing says what came of the last step, "
            f"with {share:.0%} of the reward, and this method cannot learn from such steps; give a column "
            "that says which episodes terminated, or next observations (is, wis, pdis and wpdis need neither)"
        )
    return [
        f"nothing says what came of the last step of {count} of {episodes.count} episodes: this method "
        f"leaves these steps out, with {share:.1%} of the reward"
    ]
