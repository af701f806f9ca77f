"""Policies in blocks, one block after the other; guests need devices, so they are in test_devices.py."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vlbm.estimators.critics import blocks
from vlbm.estimators.critics.bellman import Shape
from vlbm.estimators.critics.blocks import in_blocks


@pytest.mark.parametrize(
    ("few", "cache", "cores", "size"),
    [
        (0, 1, "1", 1),
        (0, 70, "1", 2),
        (0, 10**6, "1", 6),
        (0, 1, "9", 6),
        (65, 70, "1", 3),  # two are too few
        (10**6, 10**6, "1", 6),
    ],
)
def test_blocks_of_policies_do_what_all_of_them_do_together(monkeypatch, few, cache, cores, size):
    monkeypatch.setattr(blocks, "CACHE", cache)
    monkeypatch.setattr(blocks, "FEW", few)
    monkeypatch.setenv("VLBM_CORES", cores)
    random = np.random.default_rng(0)
    numbers = [jnp.asarray(random.normal(size=(2, 6, 1))) for _ in range(4)]  # 32 bytes of each policy
    answers = jnp.asarray(random.normal(size=(5, 3, 6, 2)))
    sizes = []

    def stretch(carried, answers, bounds, shape):
        sizes.append(shape.policies)
        told = (bounds[1] - bounds[0]) * answers.sum(axis=(0, 1, 3))
        return jax.tree.map(lambda leaf: leaf + told[:, None], carried)

    done = in_blocks(stretch, tuple(numbers), answers, jnp.array([3, 5]), Shape(6, 2, False, False))
    told = 2 * np.asarray(answers).sum(axis=(0, 1, 3))
    assert set(sizes) == {size}
    for before, after in zip(numbers, done, strict=True):
        np.testing.assert_allclose(after, before + told[:, None], rtol=1e-5)
