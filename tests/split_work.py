"""Run by test_devices.py in a process with two devices: the same work whole and split, as JSON."""

from __future__ import annotations

import json
import os

os.environ["JAX_NUM_CPU_DEVICES"] = "2"

import jax
import jax.numpy as jnp
import numpy as np

import vlbm.estimators.worlds.settings as fitting
from vlbm import VLBM, unrolling
from vlbm.devices import parts_for
from vlbm.estimators.worlds.ff import FeedForward
from vlbm.estimators.worlds.presets import PRESETS
from vlbm.policies.base import TracedPolicy
from vlbm.rollout import rollout
from walks import walks


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


def main() -> None:
    logs = walks(40, 12)
    common = {"batch": 64, "steps": 8, "validate_every": 4, "models": 1}
    network = {"units": 8, "latents": 3, "head_units": (8,), "window": 4, "sampling": "none"}
    estimators = {
        "batch normalisation": VLBM(**{**PRESETS["paper"], **common, **network}),
        "ff": FeedForward(**common, units=(8,)),
    }
    policies = {"left": Push(jnp.asarray(-1.0)), "right": Push(jnp.asarray(1.0))}
    out = {"devices": len(jax.devices()), "parts": parts_for(64), "losses": {}, "imagined": {}}
    for parts in (1, 2):
        fitting.parts_for = unrolling.parts_for = lambda batch, smallest=1, parts=parts: parts
        for name, estimator in estimators.items():
            evaluator = estimator.fit(logs, seed=0)
            losses = [entry["loss"] for entry in evaluator.histories[0].entries]
            out["losses"].setdefault(name, []).append(losses)
        start, key = logs.initial_observations()[:8] + np.arange(8)[:, None], jax.random.key(3)
        imagined = rollout(
            evaluator.worlds[0], policies, start=start.astype(np.float32), episodes=8, horizon=7, key=key
        )
        out["imagined"].setdefault("mean", []).append(
            [episodes.observation.tolist() for episodes in imagined.values()]
        )
        run = unrolling.TracedRun(
            evaluator.worlds[0], policies, start=start, episodes=8, actions="sample", key=key
        )
        out["imagined"].setdefault("sample", []).append(run.advance(0, 3).action.tolist())
        out["imagined"].setdefault("devices", []).append(len(run.observation.sharding.device_set))
    print(json.dumps(out))


main()
