"""Schedules: how gradients become updates."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from systems import noise_logs, random_world
from vlbm.estimators.world_models.presets import PRESETS
from vlbm.estimators.world_models.vlbm import VLBM
from vlbm.nn.layers import Dense
from vlbm.nn.optimiser import Schedule, hidden_weights


def moved(schedule: Schedule, gradient: dict[str, jax.Array], *, steps: int = 1) -> dict[str, np.ndarray]:
    """How far numbers that were all ones have moved."""
    parameters = jax.tree.map(jnp.ones_like, gradient)
    optimiser = schedule.optimiser()
    state = optimiser.init(parameters)
    for _ in range(steps):
        updates, state = optimiser.update(gradient, state, parameters)
        parameters = eqx.apply_updates(parameters, updates)
    return jax.tree.map(lambda leaf: np.asarray(leaf - 1.0), parameters)


@pytest.mark.parametrize("clip", [None, 0.5, 1e6])
def test_gradients_are_clipped_by_their_common_norm(clip):
    # A first gradient of norm 5, then one of norm 0.05: what the first left behind is what was clipped of it.
    schedule = Schedule(steps=10_000, learning_rate=0.1, clip=clip)
    optimiser, parameters = schedule.optimiser(), {"a": jnp.zeros(1), "b": jnp.zeros(1)}
    state = optimiser.init(parameters)
    large = {"a": jnp.array([3.0]), "b": jnp.array([4.0])}
    small = jax.tree.map(lambda leaf: 0.01 * leaf, large)
    _, state = optimiser.update(large, state, parameters)
    updates, _ = optimiser.update(small, state, parameters)
    first, second = min(5.0, clip or 5.0) * 0.6, 0.03  # of the first number
    mean = (0.9 * 0.1 * first + 0.1 * second) / (1 - 0.9**2)
    square = (0.999 * 0.001 * first**2 + 0.001 * second**2) / (1 - 0.999**2)
    assert float(updates["a"][0]) == pytest.approx(-0.1 * mean / square**0.5, rel=1e-3)


def test_l2_is_added_to_the_gradient_before_adam_scales_it():
    class Layer(eqx.Module):
        hidden: eqx.nn.Linear
        head: eqx.nn.Linear

    keys = jax.random.split(jax.random.key(0))
    layer = Layer(*(eqx.nn.Linear(2, 3, key=key) for key in keys))
    optimiser = Schedule(steps=100, learning_rate=0.1, weight_decay=0.01).optimiser()
    zero = jax.tree.map(jnp.zeros_like, layer)
    updates, _ = optimiser.update(zero, optimiser.init(layer), layer)
    # Adam's first step is as long as the rate, whatever the slope: here that of L2 alone.
    np.testing.assert_allclose(updates.hidden.weight, -0.1 * np.sign(layer.hidden.weight), rtol=1e-3)
    for untouched in (updates.hidden.bias, updates.head.weight, updates.head.bias):
        np.testing.assert_array_equal(untouched, 0.0)


def test_of_a_branching_model_the_weights_of_hidden_layers_decay_and_nothing_else():
    world = eqx.filter(random_world(noise_logs((5, 4), terminated=(True, False))), eqx.is_inexact_array)
    hidden = [
        layer.hidden.weight
        for layer in jax.tree.leaves(world, is_leaf=lambda node: isinstance(node, Dense))
        if isinstance(layer, Dense)
    ]
    leaves, mask = jax.tree.leaves(world), jax.tree.leaves(hidden_weights(world))
    decaying = [leaf for leaf, decays in zip(leaves, mask, strict=True) if decays]
    assert [id(leaf) for leaf in decaying] == [id(weight) for weight in hidden]
    # Of the encoder q(z_0|s_0) and q(z_t|.); of the branches g, p(z_t|.), states, rewards and terminations.
    assert len(hidden) == 2 + 1 + 1 + 1 + 2 + 2 + 2


def test_the_papers_schedule_reaches_the_optimiser():
    schedule = Schedule.of(VLBM(**PRESETS["vlbm"]["paper"]))
    gradient = {"hidden": jnp.ones(1)}
    rate = 1e-3 * sum(0.997**step for step in range(3))
    assert moved(schedule, gradient, steps=3)["hidden"] == pytest.approx(-rate, rel=1e-3)
    assert (schedule.weight_decay, schedule.clip) == (0.001, None)
