"""Run by test_devices.py in a process with two devices: the same work whole and split, as JSON."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("JAX_NUM_CPU_DEVICES", "2")

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from vlbm import VLBM, unrolling, workplaces
from vlbm.devices import AXIS, parts_for, split
from vlbm.estimators.critics import blocks
from vlbm.estimators.critics.bellman import Shape
from vlbm.estimators.critics.fqe import FQE
from vlbm.estimators.critics.lots import SEATS, lots_for
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


def guests() -> dict[str, object]:
    """A stretch of 50 steps, from the 7th on, of so many policies that one seat is empty."""
    lots, others, begin, steps = len(jax.devices()), 3, 7, 50
    policies = lots * (others + 1)
    shape = Shape(policies, 1, False, False, lots, 1)
    answers = jnp.asarray(np.random.default_rng(0).normal(size=(steps, 2, policies, 1)))
    fresh = (jnp.zeros((1, policies)), jnp.full((1, policies, steps), -1), jnp.zeros((1, policies), int))

    def stretch(carried, answers, bounds, shape):
        def body(index, carried):
            value, where, made = carried
            place = index - begin
            value = 0.9 * value + answers[place].sum(axis=(0, 2))  # depends on the order of steps
            return value, where.at[..., place].set(jax.lax.axis_index(AXIS)), made + 1

        return jax.lax.fori_loop(bounds[0], bounds[1], body, carried)

    def own(carried, answers):
        return blocks.in_blocks(stretch, carried, answers, jnp.array([begin, begin + steps]), shape)

    blocks.CACHE, blocks.FEW = 1, 0
    specs = (SEATS, PartitionSpec(None, None, AXIS))
    found = jax.jit(split(own, lots, in_specs=specs, out_specs=SEATS))(fresh, answers)
    names = ("value", "where", "made")
    out = {name: leaf[0, :-1].tolist() for name, leaf in zip(names, found, strict=True)}
    return {**out, "answers": answers.sum(axis=(1, 3)).T[:-1].tolist()}


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
    if work == "guests":
        print(json.dumps(guests()))
        return
    logs, devices = walks(40, 12), jax.local_devices()
    out: dict[str, object] = {"devices": len(jax.devices()), "parts": parts_for(64)}
    for parts in (1, 2):
        workplaces.parts_for = unrolling.parts_for = lambda batch, smallest=1, parts=parts: parts
        workplaces.jax.local_devices = lambda parts=parts: devices[:parts]
        if work == "visited critics":
            blocks.CACHE, blocks.FEW = 1, 0
        found = {"branching": branching, "critics": critics, "visited critics": critics}.get(
            work, feed_forward
        )(logs)
        for name, value in found.items():
            out.setdefault(name, []).append(value)
    print(json.dumps(out))


main(sys.argv[1])
