"""Chunks: parts of a log that are looked at one after the other."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from vlbm.estimators.critics.trained import CHUNK, TOGETHER, by_chunks, joined, longer


@pytest.mark.parametrize("count", [1, CHUNK, CHUNK + 1, 5 * CHUNK, (TOGETHER + 1) * CHUNK + 7])
def test_all_rows_are_looked_at_once_and_in_order_whatever_their_number(count):
    rows = np.arange(count)[::-1]
    parts = list(longer(rows))
    assert len({len(part) for part, _ in parts}) == 1  # one length, so one program
    assert len(parts[0][0]) <= TOGETHER * CHUNK

    def both(row):
        return jnp.stack([row, 2 * row])

    found = joined((by_chunks(both, jnp.asarray(part)), wanted) for part, wanted in parts)
    np.testing.assert_array_equal(found, [rows, 2 * rows])
