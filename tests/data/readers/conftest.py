"""A few logged episodes, and what it means that two collections are the same."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from vlbm.data.episodes import Episodes


@pytest.fixture
def logged() -> Episodes:
    """Terminated, terminated after one step, cut off, and cut off where the file ends."""
    rng = np.random.default_rng(0)
    length = np.array([3, 1, 4, 2])
    return Episodes(
        observation=rng.normal(size=(14, 2)).astype(np.float32),
        action=rng.normal(size=(10, 3)).astype(np.float32),
        reward=rng.normal(size=10).astype(np.float32),
        length=length,
        terminated=np.array([True, True, False, False]),
        log_prob=rng.normal(size=10).astype(np.float32),
    )


@pytest.fixture
def fields(logged: Episodes) -> dict[str, np.ndarray]:
    """The same episodes as D4RL records them: one row for each step."""
    before = logged.observation_before
    last = np.cumsum(logged.length) - 1
    terminals, timeouts = np.zeros(10, bool), np.zeros(10, bool)
    terminals[last[logged.terminated]] = True
    timeouts[last[~logged.terminated]] = True
    assert logged.log_prob is not None
    return {
        "observations": logged.observation[before],
        "next_observations": logged.observation[before + 1],
        "actions": logged.action,
        "rewards": logged.reward,
        "terminals": terminals,
        "timeouts": timeouts,
        "infos/action_log_probs": logged.log_prob,
    }


@pytest.fixture
def assert_same() -> Callable[[Episodes, Episodes], None]:
    """Equal in every number and every type; notes aside."""

    def check(one: Episodes, other: Episodes) -> None:
        for name in ("observation", "action", "reward", "length", "terminated", "log_prob", "final_observed"):
            left, right = getattr(one, name), getattr(other, name)
            assert (left is None) == (right is None), name
            if left is not None:
                assert left.dtype == right.dtype, name
                np.testing.assert_array_equal(left, right, err_msg=name)
        assert one.n_actions == other.n_actions

    return check
