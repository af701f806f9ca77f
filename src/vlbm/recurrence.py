"""Scans over time whose weight gradients are taken once, after the scan, not step by step within it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from vlbm.networks import LSTM, LSTMState

# The longest time that is unrolled: a default window needs no loop and none of its copies between steps.
# Longer loops make one step a turn: with five, the way back took three times as long.
UNROLL = 5
PIECE = 25  # of more steps, so many at most are multiplied at once for the weights' gradient

# What is given to a run: weights, one additive input [steps, batch, outputs] per weight, and the rest.
Run = Callable[[tuple[Array, ...], tuple[Array, ...], Any], Any]


def hoist_weight_gradients(run: Run, factors: Callable[..., tuple[Array, ...]]) -> Run:
    """`run` with a cheaper backward pass; `factors` gives what each weight was multiplied with.

    Differentiating a scan adds an outer product to every weight's gradient at every step: small
    products and much memory traffic. But the gradient of W in y_t = x_t W + b_t is sum_t x_t^T dy_t,
    and dy_t is also the gradient of the additive input b_t. So within the scan weights are constants,
    every product has an additive input, and one large product per weight comes after.
    """

    @jax.custom_vjp
    def hoisted(weights: tuple[Array, ...], offsets: tuple[Array, ...], rest: Any) -> Any:
        return run(weights, offsets, rest)

    def forward(weights: tuple[Array, ...], offsets: tuple[Array, ...], rest: Any) -> tuple[Any, Any]:
        outputs, pull_back = jax.vjp(lambda offsets, rest: run(weights, offsets, rest), offsets, rest)
        return outputs, (pull_back, factors(weights, offsets, rest, outputs))

    def backward(saved: Any, cotangent: Any) -> tuple[tuple[Array, ...], Any, Any]:
        pull_back, multiplied = saved
        offsets, rest = pull_back(cotangent)
        weights = tuple(
            jnp.einsum("tni,tno->io", factor, offset)
            for factor, offset in zip(multiplied, offsets, strict=True)
        )
        return weights, offsets, rest

    hoisted.defvjp(forward, backward)
    return hoisted


def lstm_scan(lstm: LSTM, projected: Float[Array, "steps batch gates"]) -> Float[Array, "steps batch units"]:
    """Hidden states of an LSTM that starts from zero, for inputs that went through `project`."""

    def run(weights: tuple[Array, ...], offsets: tuple[Array, ...], start: LSTMState) -> Array:
        (weight,) = weights

        def advance(state: LSTMState, offset: Array) -> tuple[LSTMState, Array]:
            state = lstm.gated(state, offset + state.hidden @ weight)
            return state, state.hidden

        return jax.lax.scan(advance, start, offsets[0], unroll=turn(offsets[0]))[1]

    def factors(weights: Any, offsets: Any, start: LSTMState, hidden: Array) -> tuple[Array, ...]:
        return (delayed(start.hidden, hidden),)

    start = lstm.zero(projected.shape[1:-1])
    return hoist_weight_gradients(run, factors)((lstm.recurrent.weight,), (projected,), start)


def turn(inputs: Float[Array, "steps *rest"]) -> int:
    """How many steps of a loop over them make a turn of the compiled one."""
    return len(inputs) if len(inputs) <= UNROLL else 1


def delayed(first: Float[Array, "batch size"], later: Float[Array, "steps batch size"]) -> Array:
    """What each step found: `first`, then the outputs of the steps before."""
    return jnp.concatenate([first[None], later[:-1]])


def stacked_lstm_scan(
    lstm: LSTM, inputs: Float[Array, "steps batch inputs"] | Float[Array, "steps stack batch inputs"]
) -> Float[Array, "steps stack batch units"]:
    """Hidden states of stacked LSTMs along many steps, from the inputs of all or of each, not projected.

    What takes time over many steps is memory. So inputs are projected in the scan, where the product is at
    hand anyway, and the way back goes in pieces: what has reached the gates of a piece's steps is multiplied
    for the weights' gradient while it is in the cache.
    """
    parts = (lstm.recurrent.weight, lstm.inputs.weight, lstm.inputs.bias[:, None])
    count = -(-len(inputs) // PIECE)
    missing = -len(inputs) % count
    filled = jnp.pad(inputs, ((0, missing), *((0, 0),) * (inputs.ndim - 1)))
    return _recur(count, jnp.concatenate(parts, axis=1), filled)[: len(inputs)]


class _Step(NamedTuple):
    """What the way back needs to know of a step."""

    joined: Float[Array, "stack batch units+inputs+1"]
    before: Float[Array, "stack batch units"]  # the cell as it was
    enter: Float[Array, "stack batch units"]
    forget: Float[Array, "stack batch units"]
    candidate: Float[Array, "stack batch units"]
    leave: Float[Array, "stack batch units"]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _recur(count: int, weight: Float[Array, "stack units+inputs+1 gates"], inputs: Array) -> Array:
    return _recur_forward(count, weight, inputs)[0]


def _recur_forward(count: int, weight: Array, inputs: Array) -> tuple[Array, tuple[Array, Array, _Step]]:
    rows = (weight.shape[0], inputs.shape[-2])

    def advance(state: LSTMState, now: Array) -> tuple[LSTMState, tuple[Array, _Step]]:
        # A one for the bias: its gradient is then a row of the weight's.
        known = (jnp.broadcast_to(now, (*rows, now.shape[-1])), jnp.ones((*rows, 1)))
        joined = jnp.concatenate([state.hidden, *known], axis=-1)
        enter, forget, candidate, leave = jnp.split(joined @ weight, 4, axis=-1)
        enter, forget, leave = map(jax.nn.sigmoid, (enter, forget, leave))
        candidate = jnp.tanh(candidate)
        cell = forget * state.cell + enter * candidate
        hidden = leave * jnp.tanh(cell)
        return LSTMState(hidden, cell), (hidden, _Step(joined, state.cell, enter, forget, candidate, leave))

    zero = jnp.zeros((*rows, weight.shape[-1] // 4))
    hidden, steps = jax.lax.scan(advance, LSTMState(zero, zero), inputs)[1]
    return hidden, (weight, inputs, steps)


def _recur_backward(count: int, saved: tuple[Array, Array, _Step], cotangent: Array) -> tuple[Array, Array]:
    weight, inputs, steps = saved
    units = cotangent.shape[-1]
    last = units + inputs.shape[-1]
    transposed = jnp.swapaxes(weight[:, :last], 1, 2)

    def retreat(carry: LSTMState, now: tuple[Array, _Step]) -> tuple[LSTMState, tuple[Array, Array]]:
        pulled, step = now
        hidden = carry.hidden + pulled
        # Worked out again: that is no slower than to keep it.
        squashed = jnp.tanh(step.forget * step.before + step.enter * step.candidate)
        cell = carry.cell + hidden * step.leave * (1.0 - squashed**2)
        gates = (
            cell * step.candidate * step.enter * (1.0 - step.enter),
            cell * step.before * step.forget * (1.0 - step.forget),
            cell * step.enter * (1.0 - step.candidate**2),
            hidden * squashed * step.leave * (1.0 - step.leave),
        )
        by_gates = jnp.concatenate(gates, axis=-1)
        by_hidden, by_inputs = jnp.split(by_gates @ transposed, [units], axis=-1)
        # Inputs of all add up what they get from each.
        by_inputs = by_inputs.sum(0) if inputs.ndim < cotangent.ndim else by_inputs
        return LSTMState(by_hidden, cell * step.forget), (by_gates, by_inputs)

    def piece(carry: tuple[LSTMState, Array], now: tuple[Array, _Step]) -> tuple[Any, Array]:
        state, by_weight = carry
        state, (by_gates, by_inputs) = jax.lax.scan(retreat, state, now, reverse=True)
        return (state, by_weight + jnp.einsum("tsni,tsno->sio", now[1].joined, by_gates)), by_inputs

    zero = jnp.zeros(cotangent.shape[1:])
    pieces = jax.tree.map(lambda leaf: leaf.reshape(count, -1, *leaf.shape[1:]), (cotangent, steps))
    start = (LSTMState(zero, zero), jnp.zeros_like(weight))
    (_, by_weight), by_inputs = jax.lax.scan(piece, start, pieces, reverse=True)
    return by_weight, by_inputs.reshape(inputs.shape)


_recur.defvjp(_recur_forward, _recur_backward)
