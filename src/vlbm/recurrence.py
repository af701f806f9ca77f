"""Scans over time whose weight gradients are taken once, after the scan, not step by step within it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from vlbm.networks import LSTM, LSTMState, closed

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


def turn(inputs: Float[Array, "steps *rest"]) -> int:
    """How many steps of a loop over them make a turn of the compiled one."""
    return len(inputs) if len(inputs) <= UNROLL else 1


def delayed(first: Float[Array, "batch size"], later: Float[Array, "steps batch size"]) -> Array:
    """What each step found: `first`, then the outputs of the steps before."""
    return jnp.concatenate([first[None], later[:-1]])


def stacked_lstm_scan(
    lstm: LSTM, inputs: Float[Array, "steps batch inputs"] | Float[Array, "steps stack batch inputs"]
) -> Float[Array, "steps stack batch units"]:
    """Hidden states of stacked LSTMs that start from zero, from the inputs of all or of each, not projected.

    What takes time beside the products is memory. So inputs are projected with the recursion, where the
    product is at hand anyway, and the weights' gradient is one product over the steps of a short window. The
    way back along many steps goes in pieces: what has reached the gates of a piece's steps is multiplied for
    the weights' gradient while it is in the cache.
    """
    parts = (lstm.recurrent.weight, lstm.inputs.weight, lstm.inputs.bias[:, None])
    weight = jnp.concatenate(parts, axis=1)
    if len(inputs) <= UNROLL:
        return _unrolled(weight, inputs)
    count = -(-len(inputs) // PIECE)
    missing = -len(inputs) % count
    filled = jnp.pad(inputs, ((0, missing), *((0, 0),) * (inputs.ndim - 1)))
    return _looped(count, weight, filled)[: len(inputs)]


class _Step(NamedTuple):
    """What the way back needs to know of a step."""

    joined: Float[Array, "stack batch units+inputs+1"]
    before: Float[Array, "stack batch units"]  # the cell as it was
    enter: Float[Array, "stack batch units"]
    forget: Float[Array, "stack batch units"]
    candidate: Float[Array, "stack batch units"]
    leave: Float[Array, "stack batch units"]
    divisor: Float[Array, "stack batch units"]  # of the cell


def _advance(weight: Array, state: LSTMState, now: Array) -> tuple[LSTMState, _Step]:
    rows = state.cell.shape[:-1]
    # A one for the bias: its gradient is then a row of the weight's.
    known = (jnp.broadcast_to(now, (*rows, now.shape[-1])), jnp.ones((*rows, 1)))
    joined = jnp.concatenate([state.hidden, *known], axis=-1)
    enter, forget, candidate, leave = jnp.split(joined @ weight, 4, axis=-1)
    divisor = closed(forget)
    enter, forget, leave = jax.nn.sigmoid(enter), 1.0 / divisor, jax.nn.sigmoid(leave)
    candidate = jnp.tanh(candidate)
    cell = forget * state.cell + enter * candidate
    step = _Step(joined, state.cell, enter, forget, candidate, leave, divisor)
    return LSTMState(leave * jnp.tanh(cell), cell), step


def _retreat(
    transposed: Array, carry: LSTMState, pulled: Array, step: _Step
) -> tuple[LSTMState, Array, Array]:
    """What reaches the state before a step, its gates and its inputs."""
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
    by_hidden, by_inputs = jnp.split(by_gates @ transposed, [hidden.shape[-1]], axis=-1)
    # A quotient, not a product: `closed` says why.
    return LSTMState(by_hidden, cell / step.divisor), by_gates, by_inputs


def _transposed(weight: Array) -> Array:
    return jnp.swapaxes(weight[:, :-1], 1, 2)  # nothing goes back to the ones


def _zero(weight: Array, inputs: Array) -> LSTMState:
    zero = jnp.zeros((weight.shape[0], inputs.shape[-2], weight.shape[-1] // 4))
    return LSTMState(zero, zero)


@jax.custom_vjp
def _unrolled(weight: Float[Array, "stack units+inputs+1 gates"], inputs: Array) -> Array:
    return _unrolled_forward(weight, inputs)[0]


def _unrolled_forward(weight: Array, inputs: Array) -> tuple[Array, tuple[Array, Array, list[_Step]]]:
    state, hidden, steps = _zero(weight, inputs), [], []
    for now in inputs:
        # With a barrier steps were up to a few percent faster, hardly beyond the noise.
        state, step = jax.lax.optimization_barrier(_advance(weight, state, now))
        hidden.append(state.hidden)
        steps.append(step)
    return jnp.stack(hidden), (weight, inputs, steps)


def _unrolled_backward(saved: tuple[Array, Array, list[_Step]], cotangent: Array) -> tuple[Array, Array]:
    weight, inputs, steps = saved
    carry = _zero(weight, inputs)
    reached: list[list[Array]] = []
    for pulled, step in zip(cotangent[::-1], steps[::-1], strict=True):
        carry, *reached_here = _retreat(_transposed(weight), carry, pulled, step)
        reached.insert(0, reached_here)
    by_gates, by_inputs = (list(part) for part in zip(*reached, strict=True))
    # The stack comes before the steps: one product for each of its members.
    rows = (jnp.stack([step.joined for step in steps], axis=1), jnp.stack(by_gates, axis=1))
    joined, gates = (part.reshape(len(weight), -1, part.shape[-1]) for part in rows)
    by_all = jnp.stack([_given_to(inputs, part) for part in by_inputs])
    return jnp.einsum("sni,sno->sio", joined, gates), by_all


_unrolled.defvjp(_unrolled_forward, _unrolled_backward)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _looped(count: int, weight: Float[Array, "stack units+inputs+1 gates"], inputs: Array) -> Array:
    return _looped_forward(count, weight, inputs)[0]


def _looped_forward(count: int, weight: Array, inputs: Array) -> tuple[Array, tuple[Array, Array, _Step]]:
    def advance(state: LSTMState, now: Array) -> tuple[LSTMState, tuple[Array, _Step]]:
        state, step = _advance(weight, state, now)
        return state, (state.hidden, step)

    hidden, steps = jax.lax.scan(advance, _zero(weight, inputs), inputs)[1]
    return hidden, (weight, inputs, steps)


def _looped_backward(count: int, saved: tuple[Array, Array, _Step], cotangent: Array) -> tuple[Array, Array]:
    weight, inputs, steps = saved
    transposed = _transposed(weight)

    def retreat(carry: LSTMState, now: tuple[Array, _Step]) -> tuple[LSTMState, tuple[Array, Array]]:
        carry, by_gates, by_inputs = _retreat(transposed, carry, *now)
        return carry, (by_gates, _given_to(inputs, by_inputs))

    def piece(carry: tuple[LSTMState, Array], now: tuple[Array, _Step]) -> tuple[Any, Array]:
        state, by_weight = carry
        state, (by_gates, by_inputs) = jax.lax.scan(retreat, state, now, reverse=True)
        return (state, by_weight + jnp.einsum("tsni,tsno->sio", now[1].joined, by_gates)), by_inputs

    pieces = jax.tree.map(lambda leaf: leaf.reshape(count, -1, *leaf.shape[1:]), (cotangent, steps))
    start = (_zero(weight, inputs), jnp.zeros_like(weight))
    (_, by_weight), by_inputs = jax.lax.scan(piece, start, pieces, reverse=True)
    return by_weight, by_inputs.reshape(inputs.shape)


_looped.defvjp(_looped_forward, _looped_backward)


def _given_to(inputs: Array, reached: Float[Array, "stack batch inputs"]) -> Array:
    """What reached the inputs of a step: those of all add up what they get from each."""
    return reached.sum(0) if inputs.ndim == reached.ndim else reached
