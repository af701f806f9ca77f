"""Schedules: how gradients become updates."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from vlbm.schedule import _clipped


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
