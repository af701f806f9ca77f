"""Run by test_parallel.py in a process with several devices: the same work on one and on all, as JSON."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_NUM_CPU_DEVICES", "2")

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from systems import linear_logs
from vlbm import VLBM
from vlbm.data.readers.packed import save_packed
from vlbm.data.sampler import Sampler
from vlbm.data.view import EpisodeView
from vlbm.estimators.fqe import FQE
from vlbm.estimators.world_models.feedforward import FeedForward
from vlbm.estimators.world_models.presets import PRESETS
from vlbm.estimators.world_models.settings import WorldModel
from vlbm.nn import training
from vlbm.nn.optimiser import Schedule
from vlbm.parallel import count_shards, make_sharding, put_on
from vlbm.policies.base import TracedPolicy
from vlbm.worlds.rollout import rollout
from walks import walks

DEVICES = jax.local_devices()
TRAINING = {"batch": 64, "steps": 8, "validate_every": 4, "models": 1}
# The paper's model, whole episodes and batch normalisation, with small networks.
PAPER = VLBM(
    **{
        **PRESETS["vlbm"]["paper"],
        **TRAINING,
        **{"branches": 2, "units": 8, "latents": 3, "head_units": (8,), "g_units": (8,)},
    }
)
ENSEMBLE = FeedForward(**TRAINING, units=(8,), members=2)


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


def pushes(*forces: float) -> dict[str, Push]:
    return {f"push {force:g}": Push(jnp.asarray(force)) for force in forces}


def use(count: int) -> None:
    """From now on so many devices are there."""
    jax.local_devices = lambda: DEVICES[:count]


def trained(settings: WorldModel, logs) -> dict[str, Any]:
    """Losses, weights by name, and over how many devices the batches of a fit were split."""
    shards: set[int] = set()
    split_batch = training.split_batch

    def noted(batch: Any, count: int) -> Any:
        shards.add(count)
        return split_batch(batch, count)

    training.split_batch = noted
    training._compile_steps.cache_clear()
    evaluator = settings.fit(logs, seed=0)
    training.split_batch = split_batch
    leaves = jax.tree_util.tree_leaves_with_path(eqx.filter(evaluator.worlds[0], eqx.is_inexact_array))
    return {
        "entries": [history.entries for history in evaluator.histories],
        "weights": {jax.tree_util.keystr(path): leaf.reshape(-1).tolist() for path, leaf in leaves},
        "shards": sorted(shards),
    }


def flops(settings: WorldModel, logs, shards: int) -> float:
    """Floating-point operations of a training step, on the device that has most to do."""
    # The part that a fit trains on, whose programs are compiled already.
    part, plan = (
        EpisodeView.of(logs).split(settings.held_out, seed=0)[0],
        settings.plan(int(logs.length.max())),
    )
    sampler, world = Sampler.of(part), settings.make_world(part, key=jax.random.key(0))
    schedule = replace(Schedule.of(settings), learning_rate=1.0)  # the rate is an argument
    state = schedule.optimiser().init(eqx.filter(world, eqx.is_inexact_array))
    advance = training._compile_steps(training.evaluate_loss, (settings,), plan, schedule, False, shards)
    arguments = put_on((world, state, sampler, jax.random.key(0)), make_sharding(shards))
    compiled = advance.lower(*arguments, jnp.float32(1), jnp.int32(0), jnp.int32(1)).compile()
    return compiled.compiled.cost_analysis()["flops"]


def paper(logs) -> dict[str, Any]:
    # Starts that differ, so that the layers that see them learn; short, because loops over time are unrolled.
    logs = linear_logs((4,) * 40, observations=3, actions=1)
    return {"trained": trained(PAPER, logs), "flops": flops(PAPER, logs, count_shards(64))}


def ensembles(logs) -> dict[str, Any]:
    several = FeedForward(**{**TRAINING, "models": 3}, units=(8,), members=2)
    with tempfile.TemporaryDirectory() as folder:
        mapped = trained(ENSEMBLE, save_packed(logs, Path(folder) / "packed"))
    return {"trained": trained(ENSEMBLE, logs), "mapped": mapped, "several": trained(several, logs)}


def imagined(logs) -> dict[str, Any]:
    """What two policies meet in the same world, by mean actions and by drawn ones."""
    world = ENSEMBLE.make_world(logs, key=jax.random.key(1))
    start = logs.initial_observations() + np.arange(logs.count, dtype=np.float32)[:, None]
    options = {"start": start, "episodes": logs.count, "horizon": 7, "key": jax.random.key(3)}
    found = {}
    for actions in ("mean", "sample"):
        episodes = rollout(world, pushes(-1.0, 1.0), actions=actions, **options)
        found[actions] = [
            {"observation": each.observation.tolist(), "action": each.action.reshape(logs.count, 7).tolist()}
            for each in episodes.values()
        ]
    return found


def critics(logs) -> dict[str, Any]:
    """Values and errors of policies, some of whose critics are on every device."""
    settings = FQE(units=(8, 8), rounds=1, steps=60, batch=32)
    rows = settings.fit(logs, seed=0).evaluate(pushes(-1.0, 0.0, 1.0), discount=0.9)
    return {"values": [[row.value, row.standard_error] for row in rows]}


def main(work: str) -> None:
    logs, found = walks(40, 12), []
    for count in (1, len(DEVICES)):
        use(count)
        found.append(globals()[work](logs))
    print(json.dumps({"devices": len(DEVICES), "one": found[0], "all": found[1]}))


main(sys.argv[1])
