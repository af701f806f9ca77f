"""Schedules: how gradients become updates."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from vlbm.schedule import LONG, Schedule, _clipped, _squares


@pytest.mark.parametrize("largest", [0.5, 1e6])
@pytest.mark.parametrize("size", [3, 256, 517])
def test_gradients_are_clipped_by_their_common_norm(largest, size):
    random = np.random.default_rng(0)
    gradient = {"vector": random.normal(size=size), "matrix": random.normal(size=(7, size)), "number": 2.0}
    gradient = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), gradient)
    ours, theirs = (
        clip.update(gradient, clip.init(gradient))[0]
        for clip in (_clipped(largest), optax.clip_by_global_norm(largest))
    )
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
    assert (optax.global_norm(ours) < 0.51) == (largest < 1)


@pytest.mark.parametrize("more", [0, 1, 1000])
def test_no_number_of_a_long_vector_is_left_out_of_its_norm(more):
    vector = np.random.default_rng(0).normal(size=LONG + more).astype(np.float32)
    vector[[0, -1]] = 300.0
    np.testing.assert_allclose(
        _squares(jnp.asarray(vector)), (vector.astype(np.float64) ** 2).sum(), rtol=1e-5
    )


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_one_vector_is_moved_as_its_arrays_would_be(weight_decay):
    random = np.random.default_rng(0)
    shapes = {"stacked": (3, 5, 4), "matrix": (3, 4), "vector": (7,), "number": ()}
    start = {name: jnp.asarray(random.normal(size=shape), jnp.float32) for name, shape in shapes.items()}
    schedule, ends = Schedule(steps=3, clip=0.5, weight_decay=weight_decay), []
    for flat in (False, True):
        optimiser, parameters = schedule.optimiser(flat=flat), start
        state = optimiser.init(parameters)
        for _ in range(3):
            gradient = jax.tree.map(lambda leaf: jnp.sin(3.0 * leaf), parameters)
            updates, state = optimiser.update(gradient, state, parameters)
            parameters = optax.apply_updates(parameters, updates)
        ends.append(parameters)
    for name, before in start.items():
        np.testing.assert_allclose(ends[0][name], ends[1][name], rtol=1e-5)
        assert (ends[1][name] != before).all()
