"""Gradients that are written out, against those that JAX derives."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vlbm.backward import contracted


@pytest.mark.parametrize("widths", [(2, 5), (5, 2), (3, 3)])
@pytest.mark.parametrize("stacked", [(False, False), (True, False), (False, True), (True, True)])
def test_rows_are_contracted_whichever_is_wider_and_whichever_is_shared(widths, stacked):
    random = np.random.default_rng(0)
    left, right = (
        jnp.asarray(random.normal(size=((4, 7, width) if stack else (7, width))), jnp.float32)
        for width, stack in zip(widths, stacked, strict=True)
    )
    axes = tuple(0 if stack else None for stack in stacked)
    found = jax.vmap(contracted, in_axes=axes)(left, right) if any(stacked) else contracted(left, right)
    np.testing.assert_allclose(found, jnp.swapaxes(left, -1, -2) @ right, rtol=1e-5, atol=1e-6)
