"""A chain of states that never ends: walking on pays late, going back pays at once."""

from __future__ import annotations

import numpy as np

from vlbm.suites.exact.tabular import TabularPolicy, TabularSystem

BACK, ON = 0, 1
BACK_REWARD = 0.25
END_REWARD = 1.0


def chain(*, states: int = 5, slip: float = 0.1, horizon: int = 15, discount: float = 0.95) -> TabularSystem:
    """Action 0 leads back to the start and pays a little, action 1 leads on; the last state pays to stay.

    With probability `slip` the other action happens.
    """
    outcome = np.zeros((states, 2, states))
    outcome[:, BACK, 0] = 1.0
    outcome[np.arange(states), ON, np.minimum(np.arange(states) + 1, states - 1)] = 1.0
    reward = np.zeros((states, 1, states))
    reward[:, 0, 0] = BACK_REWARD
    reward[-1, 0, -1] = END_REWARD
    return TabularSystem(
        name="chain",
        transition=(1 - slip) * outcome + slip * outcome[:, ::-1],
        reward=reward,
        initial=np.eye(states)[0],
        terminal=np.zeros(states, bool),
        behaviour=forward_policy(0.6, states=states),
        targets={
            f"on {probability:g}": forward_policy(probability, states=states)
            for probability in (0.4, 0.7, 0.8)
        },
        discount=discount,
        horizon=horizon,
    )


def forward_policy(probability: float, *, states: int = 5) -> TabularPolicy:
    """Walks on with this probability in every state."""
    return TabularPolicy(np.tile([1 - probability, probability], (states, 1)))
