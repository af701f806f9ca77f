"""What many tests share."""

from __future__ import annotations

import os
from pathlib import Path

# Compiling dominates tests of small models: it is done quickly rather than well, and kept from run to run.
# Both must be said before JAX starts.
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_backend_optimization_level=0"
os.environ.setdefault("VLBM_CACHE", str(Path(__file__).resolve().parents[1] / ".pytest_cache" / "vlbm"))

import numpy as np
import pytest

from vlbm.compilation import keep_programs
from vlbm.episodes import Episodes

keep_programs()


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with the real DOPE files, where it is present."""
    place = Path(__file__).resolve().parents[2] / "shared"
    if not (place / "dope").is_dir():
        pytest.skip("the real DOPE files are not here (a folder 'shared' beside the repository)")
    return place


def make_episodes(
    lengths=(12, 9, 15, 7, 11, 12), *, observations=3, actions=2, seed=0, choices=None
) -> Episodes:
    """A stable linear system under random actions; every other episode is terminated."""
    random = np.random.default_rng(seed)
    states, taken, rewards = [], [], []
    drive = random.normal(size=(actions, observations)) * 0.5
    for length in lengths:
        state = random.normal(size=observations)
        states.append(state)
        for _ in range(length):
            action = random.uniform(-1, 1, size=actions)
            if choices is not None:
                chosen = random.integers(choices)
                taken.append(chosen)
                action = np.full(actions, chosen / choices)
            else:
                taken.append(action)
            state = 0.9 * state + action @ drive + 0.05 * random.normal(size=observations)
            rewards.append(state[0] + 0.01 * random.normal())
            states.append(state)
    return Episodes(
        observation=np.array(states, np.float32),
        action=np.array(taken, np.int32 if choices is not None else np.float32),
        reward=np.array(rewards, np.float32),
        length=np.array(lengths, np.int64),
        terminated=np.arange(len(lengths)) % 2 == 0,
        choices=choices,
    )
