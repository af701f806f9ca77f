"""The backward pass that takes weight gradients after the scan equals the ordinary one."""

from __future__ import annotations

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vlbm.networks import LSTM, LSTMState, stacked
from vlbm.recurrence import PIECE, UNROLL, stacked_lstm_scan


def plain_scan(lstm: LSTM, projected: jax.Array) -> jax.Array:
    def advance(state: LSTMState, projected: jax.Array) -> tuple[LSTMState, jax.Array]:
        state = lstm.gated(state, projected + state.hidden @ lstm.recurrent.weight)
        return state, state.hidden

    return jax.lax.scan(advance, lstm.zero(projected.shape[1:-1]), projected)[1]


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("steps", [2, UNROLL, UNROLL + 1, PIECE, PIECE + 3])
def test_stacked_scans_and_their_gradients_equal_plain_recursions(own, steps):
    stack = stacked([LSTM(3, 4, random=np.random.default_rng(seed)) for seed in (0, 5)])
    inputs = jax.random.normal(jax.random.key(1), (steps, 2, 6, 3) if own else (steps, 6, 3))
    direction = jax.random.normal(jax.random.key(2), (steps, 2, 6, 4))
    sloping = 2

    def plainly(lstm: LSTM, inputs: jax.Array) -> jax.Array:
        one = eqx.filter_vmap(
            lambda lstm, inputs: plain_scan(lstm, lstm.project(inputs)),
            in_axes=(eqx.if_array(0), 1 if own else None),
            out_axes=1,
        )
        given = jax.lax.stop_gradient(inputs[..., sloping:])
        return one(lstm, jnp.concatenate([inputs[..., :sloping], given], axis=-1))

    def loss(scan, lstm: LSTM, inputs: jax.Array) -> tuple[jax.Array, jax.Array]:
        hidden = scan(lstm, inputs)
        return (hidden * direction).sum(), hidden

    slope = jax.jit(jax.grad(loss, argnums=(1, 2), has_aux=True), static_argnums=0)
    ours = partial(stacked_lstm_scan, sloping=sloping)
    results = slope(ours, stack, inputs), slope(plainly, stack, inputs)
    for found, plain in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_allclose(found, plain, rtol=1e-4, atol=1e-5)
    assert np.abs(results[0][0][0].recurrent.weight).min() > 0
