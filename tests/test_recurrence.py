"""The backward pass that takes weight gradients after the scan equals the ordinary one."""

from __future__ import annotations

import equinox as eqx
import jax
import numpy as np
import pytest

from vlbm.networks import LSTM, LSTMState, stacked
from vlbm.recurrence import PIECE, lstm_scan, stacked_lstm_scan


@pytest.fixture(scope="module")
def lstm() -> LSTM:
    return LSTM(3, 4, random=np.random.default_rng(0))


def plain_scan(lstm: LSTM, projected: jax.Array) -> jax.Array:
    def advance(state: LSTMState, projected: jax.Array) -> tuple[LSTMState, jax.Array]:
        state = lstm.step(state, projected)
        return state, state.hidden

    return jax.lax.scan(advance, lstm.zero(projected.shape[1:-1]), projected)[1]


def test_the_scan_and_its_gradient_equal_the_plain_recursion(lstm):
    inputs = jax.random.normal(jax.random.key(1), (6, 2, 3))
    direction = jax.random.normal(jax.random.key(2), (6, 2, 4))

    def loss(lstm: LSTM, inputs: jax.Array, scan) -> jax.Array:
        return (scan(lstm, lstm.project(inputs)) * direction).sum()

    def both(scan) -> tuple[jax.Array, LSTM, jax.Array]:
        hidden = scan(lstm, lstm.project(inputs))
        return hidden, *jax.jit(jax.grad(loss, argnums=(0, 1)), static_argnums=2)(lstm, inputs, scan)

    results = both(lstm_scan), both(plain_scan)
    for ours, plain in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_allclose(ours, plain, rtol=1e-5, atol=1e-6)
    assert np.abs(results[0][1].recurrent.weight).min() > 0


def test_the_scan_can_be_mapped_over_branches(lstm):
    other = LSTM(3, 4, random=np.random.default_rng(5))
    stack = stacked([lstm, other])
    inputs = jax.random.normal(jax.random.key(1), (6, 2, 3))

    def loss(lstm: LSTM) -> jax.Array:
        return (lstm_scan(lstm, lstm.project(inputs)) ** 2).sum()

    gradient = eqx.filter_jit(eqx.filter_grad(loss))
    together = eqx.filter_vmap(gradient)(stack)
    for index, single in enumerate((lstm, other)):
        np.testing.assert_allclose(
            together.recurrent.weight[index], gradient(single).recurrent.weight, rtol=1e-5
        )


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("steps", [PIECE, PIECE + 3])
def test_long_stacked_scans_and_their_gradients_equal_plain_recursions(own, steps):
    stack = stacked([LSTM(3, 4, random=np.random.default_rng(seed)) for seed in (0, 5)])
    inputs = jax.random.normal(jax.random.key(1), (steps, 2, 2, 3) if own else (steps, 2, 3))
    direction = jax.random.normal(jax.random.key(2), (steps, 2, 2, 4))

    def plainly(lstm: LSTM, inputs: jax.Array) -> jax.Array:
        one = eqx.filter_vmap(
            lambda lstm, inputs: plain_scan(lstm, lstm.project(inputs)),
            in_axes=(eqx.if_array(0), 1 if own else None),
            out_axes=1,
        )
        return one(lstm, inputs)

    def loss(scan, lstm: LSTM, inputs: jax.Array) -> tuple[jax.Array, jax.Array]:
        hidden = scan(lstm, inputs)
        return (hidden * direction).sum(), hidden

    slope = jax.jit(jax.grad(loss, argnums=(1, 2), has_aux=True), static_argnums=0)
    results = slope(stacked_lstm_scan, stack, inputs), slope(plainly, stack, inputs)
    for ours, plain in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_allclose(ours, plain, rtol=1e-4, atol=1e-5)
    assert np.abs(results[0][0][0].recurrent.weight).min() > 0
