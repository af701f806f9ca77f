"""Small files in the layouts of D4RL and DOPE."""

from __future__ import annotations

import pickle
from pathlib import Path

import h5py
import numpy as np

from vlbm.suites.dope import find_problem


def write_policies(directory: Path, environment: str, *, hidden: int = 4) -> Path:
    """Eleven policies of random weights, where DOPE would have them."""
    known = find_problem(f"dope/{environment}-expert")
    gym = known.family == "gym"
    for number, remote in enumerate(known.policies.values()):
        rng = np.random.default_rng(number)

        def layer(name: str, inputs: int, outputs: int, rng=rng) -> dict[str, np.ndarray]:
            weight = (rng.normal(size=(outputs, inputs)) / np.sqrt(inputs)).astype(np.float32)
            return {f"{name}/weight": weight, f"{name}/bias": np.zeros(outputs, np.float32)}

        weights = {
            **layer("fc0", known.policy_inputs, hidden),
            **layer("fc1", hidden, hidden),
            **layer("last_fc", hidden, known.actions),
            **layer("last_fc_log_std", hidden, known.actions),
            "nonlinearity": "relu" if gym else "tanh",
            "output_distribution": "tanh_gaussian" if gym else "gaussian",
        }
        path = directory / remote.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pickle.dumps(weights))
    return directory


def write_d4rl(
    path: Path, *, observations: int, actions: int, next_observations: bool = True, reach: float = 1.0
) -> Path:
    """Three episodes of 4, 3 and 5 steps: cut off, terminated, cut off."""
    rng = np.random.default_rng(0)
    steps = 12
    terminals, timeouts = np.zeros(steps, bool), np.zeros(steps, bool)
    terminals[6], timeouts[[3, 11]] = True, True
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        file["observations"] = rng.normal(size=(steps, observations)).astype(np.float32)
        file["actions"] = rng.uniform(-reach, reach, size=(steps, actions)).astype(np.float32)
        file["rewards"] = rng.normal(size=steps).astype(np.float32)
        file["terminals"], file["timeouts"] = terminals, timeouts
        if next_observations:  # the Gym files of version 2 have them, Adroit's do not
            following = np.roll(np.asarray(file["observations"]), -1, axis=0)
            following[[3, 6, 11]] = 0.5
            file["next_observations"] = following
            file["infos/action_log_probs"] = rng.normal(size=steps).astype(np.float32)
            file["metadata/algorithm"] = "SAC"
    return path
