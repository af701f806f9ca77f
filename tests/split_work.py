"""Run by test_devices.py in a process with two devices: the same work whole and split, as JSON."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

os.environ["JAX_NUM_CPU_DEVICES"] = "2"

import jax
import jax.numpy as jnp
import numpy as np

from vlbm import VLBM, unrolling, workplaces
from vlbm.devices import parts_for
from vlbm.estimators.critics.fqe import FQE
from vlbm.estimators.critics.lots import lots_for
from vlbm.estimators.worlds.ff import FeedForward
from vlbm.estimators.worlds.presets import PRESETS
from vlbm.policies.base import TracedPolicy
from vlbm.rollout import rollout
from vlbm.seating import Seating
from vlbm.sources.packed import save_packed
from walks import walks

KEPT = [1, 3, 4, 6]  # episodes that go on alone, of each half two
TRAINING = {"batch": 64, "steps": 8, "validate_every": 4, "models": 1}


class Push(TracedPolicy):
    """a = force, with noise of deviation one when sampled."""

    force: jax.Array
    observation_size = None
    action_size = None

    def mean(self, observation):
        return jnp.full((*observation.shape[:-1], 1), self.force)

    def sample(self, observation, *, key):
        return self.mean(observation) + jax.random.normal(key, (*observation.shape[:-1], 1))

    def log_prob(self, observation, action):
        raise NotImplementedError


def losses(evaluator) -> list[float]:
    return [entry["loss"] for entry in evaluator.histories[0].entries]


def branching(logs) -> dict[str, list[float]]:
    # Whole episodes, longer than what goes through the heads at once.
    network = {"units": 8, "latents": 3, "head_units": (8,)}
    settings = VLBM(**{**PRESETS["paper"], **TRAINING, **network})
    return {"branching": losses(settings.fit(logs, seed=0))}


def feed_forward(logs) -> dict[str, object]:
    settings = FeedForward(**TRAINING, units=(8,))
    evaluator = settings.fit(logs, seed=0)
    several = FeedForward(**{**TRAINING, "models": 3}, units=(8,)).fit(logs, seed=0)
    with tempfile.TemporaryDirectory() as folder:
        mapped = settings.fit(save_packed(logs, Path(folder) / "packed"), seed=0)
    policies = {"left": Push(jnp.asarray(-1.0)), "right": Push(jnp.asarray(1.0))}
    start, key = logs.initial_observations()[:8] + np.arange(8, dtype=np.float32)[:, None], jax.random.key(3)
    world = evaluator.worlds[0]
    imagined = rollout(world, policies, start=start, episodes=8, horizon=7, key=key)
    run = unrolling.TracedRun(world, policies, start=start, episodes=8, horizon=3, actions="sample", key=key)
    sampled = run.advance(0, 3).action.tolist()
    used = len(run.observation.sharding.device_set)
    run.keep(Seating(np.array([1]), np.array([KEPT])))
    kept = run.advance(3, 4).action[:, 0].tolist()
    run = unrolling.TracedRun(world, policies, start=start, episodes=8, horizon=3, actions="sample", key=key)
    run.advance(0, 3)
    return {
        "ff": losses(evaluator),
        "mapped": losses(mapped),
        "imagined": [episodes.observation.tolist() for episodes in imagined.values()],
        "sampled": sampled,
        "kept": [run.advance(3, 4).action[:, 1, KEPT].tolist(), kept],
        "several": [history.entries for history in several.histories],
        "used": used,
    }


def critics(logs) -> dict[str, object]:
    """Values, errors and what residuals weigh, of networks with two layers."""
    policies = {
        name: Push(jnp.asarray(force)) for name, force in (("left", -1.0), ("rest", 0.0), ("right", 1.0))
    }
    settings = FQE(shared=False, units=(8, 8), steps=60, batch=32)
    fitted = settings.fit(logs, seed=0).train(policies, discount=0.9)
    rows = [
        fitted.estimate(name, interval="asymptotic", resamples=1, confidence=0.95, seed=0)
        for name in policies
    ]
    lots = lots_for(len(policies), fitted.trained.logged)
    return {"critics": [[row.value, row.standard_error] for row in rows], "lots": lots}


def main(work: str) -> None:
    logs, devices = walks(40, 12), jax.local_devices()
    out: dict[str, object] = {"devices": len(jax.devices()), "parts": parts_for(64)}
    for parts in (1, 2):
        workplaces.parts_for = unrolling.parts_for = lambda batch, smallest=1, parts=parts: parts
        workplaces.jax.local_devices = lambda parts=parts: devices[:parts]
        found = {"branching": branching, "critics": critics}.get(work, feed_forward)(logs)
        for name, value in found.items():
            out.setdefault(name, []).append(value)
    print(json.dumps(out))


main(sys.argv[1])
