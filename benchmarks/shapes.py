"""What is measured: models, policies and sizes that several benchmarks share."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from measure import smooth_logs
from yardstick import Architecture

from vlbm.estimators.world_models.presets import PAPER
from vlbm.estimators.world_models.vlbm import VLBM
from vlbm.nn.batch_norm import VARIANCE_FLOOR, BatchNorm
from vlbm.nn.layers import Dense
from vlbm.policies.mlp import Layer, MLPPolicy
from vlbm.worlds.vlbm import BranchingModel

# The authors' code: seconds for an iteration of 64 episodes of 1,000 steps, and for one imagined episode.
AUTHORS_ITERATION = 71.0
AUTHORS_EPISODE = 82.0
OBSERVATIONS, ACTIONS = 17, 6
POLICIES, EPISODES = 11, 50


def paper_settings(**changes: Any) -> VLBM:
    return VLBM(**{**PAPER, **changes})


def make_world(settings: VLBM, *, seed: int = 0) -> BranchingModel:
    """An untrained model, scaled to data of HalfCheetah's sizes."""
    return settings.make_world(smooth_logs(episodes=4, length=100), key=jax.random.key(seed))


def architecture(settings: VLBM) -> Architecture:
    return Architecture(
        observations=OBSERVATIONS,
        actions=ACTIONS,
        latents=settings.latents,
        units=settings.units,
        head_units=settings.head_units,
        normalisation=settings.normalisation,
        scale_floor=settings.scale_floor,
    )


def within_yardstick(settings: VLBM, *, seed: int = 0) -> tuple[VLBM, BranchingModel]:
    """Settings and a model that the yardstick can compute, which is a little less than vlbm's model.

    Where the yardstick has no layer, vlbm's is made to change nothing: the last layer of g, and the
    normalisation after the LSTMs.
    """
    settings = replace(settings, g_units=(settings.units,), spread="scale")
    world = make_world(settings, seed=seed)
    last = world.branches.g.last
    same = (jnp.broadcast_to(jnp.eye(settings.units), last.weight.shape), jnp.zeros(last.weight.shape[:-1]))
    world = eqx.tree_at(lambda tree: (tree.branches.g.last.weight, tree.branches.g.last.bias), world, same)
    return settings, eqx.tree_at(_after_lstms, world, replace_fn=_without_effect)


def _after_lstms(world: BranchingModel) -> tuple[Dense, Dense]:
    return world.encoder.later.mlp.layers[0], world.branches.transition.mlp.layers[0]


def _without_effect(layer: Dense) -> Dense:
    if not isinstance(layer.norm, BatchNorm):
        return layer
    gain = jnp.sqrt(layer.norm.variance + VARIANCE_FLOOR)
    return eqx.tree_at(lambda layer: (layer.norm.gain, layer.norm.shift), layer, (gain, layer.norm.mean))


def tanh_policies(
    count: int = POLICIES, *, units: Sequence[int] = (256, 256), seed: int = 0
) -> dict[str, MLPPolicy]:
    """Random tanh-Gaussian networks of the size of DOPE's."""
    random = np.random.default_rng(seed)

    def policy() -> MLPPolicy:
        hidden, last = _hidden(units, random)
        heads = (_layer(last, ACTIONS, random) for _ in range(2))
        return MLPPolicy(hidden, *heads, nonlinearity="relu", distribution="tanh_gaussian")

    return {f"policy {index}": policy() for index in range(count)}


def categorical_policies(count: int, *, actions: int, seed: int = 0) -> list[MLPPolicy]:
    """Random networks that choose among actions, not too far from each other to be weighed."""
    random = np.random.default_rng(seed)

    def policy() -> MLPPolicy:
        hidden, last = _hidden((64, 64), random)
        head = _layer(last, actions, random, gain=0.2)
        return MLPPolicy(hidden, head, nonlinearity="tanh", distribution="categorical")

    return [policy() for _ in range(count)]


def _hidden(units: Sequence[int], random: np.random.Generator) -> tuple[list[Layer], int]:
    sizes = [OBSERVATIONS, *units]
    return [_layer(*pair, random) for pair in itertools.pairwise(sizes)], sizes[-1]


def _layer(inputs: int, outputs: int, random: np.random.Generator, gain: float = 1.0) -> Layer:
    weight = gain * random.normal(size=(outputs, inputs)) / inputs**0.5
    return Layer(jnp.asarray(weight, jnp.float32), jnp.zeros(outputs))


def starts(episodes: int = EPISODES) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(episodes, OBSERVATIONS)).astype(np.float32)
