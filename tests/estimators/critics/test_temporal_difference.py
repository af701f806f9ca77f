"""Stretches of training: policies in blocks, one block after the other."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vlbm.estimators.critics import temporal_difference
from vlbm.estimators.critics.bellman import Shape
from vlbm.estimators.critics.temporal_difference import State, _in_blocks


@pytest.mark.parametrize(
    ("cache", "cores", "size"), [(1, "1", 1), (70, "1", 2), (10**6, "1", 6), (1, "9", 6)]
)
def test_blocks_of_policies_do_what_all_of_them_do_together(monkeypatch, cache, cores, size):
    monkeypatch.setattr(temporal_difference, "CACHE", cache)
    monkeypatch.setenv("VLBM_CORES", cores)
    random = np.random.default_rng(0)
    numbers = [jnp.asarray(random.normal(size=(2, 6, 1))) for _ in range(4)]  # 32 bytes of each policy
    answers = jnp.asarray(random.normal(size=(5, 3, 6, 2)))
    blocks = []

    def stretch(state, answers, shape):
        blocks.append(shape.policies)
        told = answers.sum(axis=(0, 1, 3))
        return jax.tree.map(lambda leaf: leaf + told[:, None], state), told

    state, losses = _in_blocks(stretch, State(*numbers), answers, Shape(6, 2, False, False))
    told = np.asarray(answers).sum(axis=(0, 1, 3))
    assert set(blocks) == {size}
    np.testing.assert_allclose(losses, told, rtol=1e-5)
    for before, after in zip(numbers, state, strict=True):
        np.testing.assert_allclose(after, before + told[:, None], rtol=1e-5)
