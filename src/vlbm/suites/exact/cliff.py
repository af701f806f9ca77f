"""A cliff walk with a wall: a board, a goal, and a wall where the cliff would be."""

from __future__ import annotations

import numpy as np

from vlbm.suites.exact.tabular import TabularPolicy, TabularSystem

ROWS, COLUMNS = 4, 12
CELLS = ROWS * COLUMNS
START, GOAL = 36, 47
WALL = range(37, 47)
UP, RIGHT, DOWN, LEFT = range(4)
STEP_REWARD = -1.0
GOAL_REWARD = 10.0


def cliff(*, horizon: int = 60, discount: float = 0.99) -> TabularSystem:
    """Cells are numbered row by row; moving into the wall or off the board leaves you where you are.

    Every step costs 1; the one that reaches the goal pays 10 instead, and ends the episode.
    """
    transition = np.zeros((CELLS, 4, CELLS))
    for cell in range(CELLS):
        row, column = divmod(cell, COLUMNS)
        for action, (down, right) in enumerate([(-1, 0), (0, 1), (1, 0), (0, -1)]):
            reached = (row + down) * COLUMNS + column + right
            inside = 0 <= row + down < ROWS and 0 <= column + right < COLUMNS
            transition[cell, action, reached if inside and reached not in WALL else cell] = 1.0
    reward = np.full((1, 1, CELLS), STEP_REWARD)
    reward[..., GOAL] = GOAL_REWARD
    return TabularSystem(
        name="cliff",
        transition=transition,
        reward=reward,
        initial=np.eye(CELLS)[START],
        terminal=np.arange(CELLS) == GOAL,
        behaviour=epsilon_policy(0.4),
        targets={f"erring {error:g}": epsilon_policy(error) for error in (0.2, 0.3, 0.5)},
        discount=discount,
        horizon=horizon,
    )


def epsilon_policy(error: float) -> TabularPolicy:
    """The best policy, except that with probability `error` it takes any action."""
    best = np.zeros((CELLS, 4))
    rows, columns = np.divmod(np.arange(CELLS), COLUMNS)
    best[rows < 2, RIGHT] = best[rows < 2, DOWN] = 0.5
    best[rows == 2, RIGHT] = 1.0
    best[rows == 3, UP] = 1.0
    best[columns == COLUMNS - 1] = np.eye(4)[DOWN]
    return TabularPolicy((1 - error) * best + error / 4)
