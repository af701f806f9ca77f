"""A graph with slip: three moves between an upper and a lower lane, then the end."""

from __future__ import annotations

import numpy as np

from vlbm.suites.exact.tabular import TabularPolicy, TabularSystem

NODES = 7
END = 7


def graph(*, slip: float = 0.25, sparse: bool = False, discount: float = 0.98) -> TabularSystem:
    """From node 0 over 1 or 2, 3 or 4, 5 or 6 to the end; the graph of the COBS benchmark.

    Action 0 leads to the next odd node and action 1 to the next even one, with probability `slip`
    the other way. Entering an odd node pays +1 and an even one -1; the last step pays the same for
    the node it leaves. With `sparse` only the last step pays.
    """
    nodes = np.arange(NODES + 1)
    sign = np.where(nodes % 2 == 1, 1.0, -1.0)
    outcome = np.zeros((NODES + 1, 2, NODES + 1))
    for node in range(5):
        odd = node + 1 if node % 2 == 0 else node + 2
        outcome[node, 0, odd] = outcome[node, 1, odd + 1] = 1.0
    outcome[5:, :, END] = 1.0
    reward = np.zeros((NODES + 1, 1, NODES + 1))
    if not sparse:
        reward[:5, 0, :] = sign
    reward[5:NODES, 0, END] = sign[5:NODES]
    return TabularSystem(
        name="graph",
        transition=(1 - slip) * outcome + slip * outcome[:, ::-1],
        reward=reward,
        initial=np.eye(NODES + 1)[0],
        terminal=nodes == END,
        behaviour=odd_policy(0.6),
        targets={f"odd {probability:g}": odd_policy(probability) for probability in (0.2, 0.5, 0.8)},
        discount=discount,
        horizon=4,
    )


def odd_policy(probability: float) -> TabularPolicy:
    """Chooses action 0 with this probability in every state."""
    return TabularPolicy(np.tile([probability, 1 - probability], (NODES + 1, 1)))
