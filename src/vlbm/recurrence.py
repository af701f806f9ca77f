"""Scans over time whose weight gradients are taken once, after the scan, not step by step within it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from vlbm.backward import contracted
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
            contracted(factor.reshape(-1, factor.shape[-1]), offset.reshape(-1, offset.shape[-1]))
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
    lstm: LSTM,
    inputs: Float[Array, "steps batch inputs"] | Float[Array, "steps stack batch inputs"],
    *,
    sloping: int,
) -> Float[Array, "steps stack batch units"]:
    """Hidden states of stacked LSTMs that start from zero, from the inputs of all or of each, not projected.

    Of the inputs so many have a slope, the first ones; the rest are given.

    What takes time beside the products is memory. So inputs are projected with the recursion, where the
    product is at hand anyway, and the weights' gradient is one product over the steps of a short window. The
    way back along many steps goes in pieces: what has reached the gates of a piece's steps is multiplied for
    the weights' gradient while it is in the cache.
    """
    parts = (lstm.recurrent.weight, lstm.inputs.weight, lstm.inputs.bias[:, None])
    weight = jnp.concatenate(parts, axis=1)
    if len(inputs) <= UNROLL:
        return _unrolled(sloping, weight, inputs)
    count = -(-len(inputs) // PIECE)
    missing = -len(inputs) % count
    filled = jnp.pad(inputs, ((0, missing), *((0, 0),) * (inputs.ndim - 1)))
    return _looped(count, sloping, weight, filled)[: len(inputs)]


class _Step(NamedTuple):
    """What the way back needs to know of a step, beside what was multiplied."""

    before: Float[Array, "stack batch units"]  # the cell as it was
    enter: Float[Array, "stack batch units"]
    forget: Float[Array, "stack batch units"]
    candidate: Float[Array, "stack batch units"]
    leave: Float[Array, "stack batch units"]


class _Advanced(NamedTuple):
    """What a step leads to."""

    state: LSTMState
    joined: Float[Array, "stack batch units+inputs+1"]  # what the weight was multiplied with
    divisor: Float[Array, "stack batch units"]  # of the cell, to be forgotten
    step: _Step


def _advance(weight: Array, state: LSTMState, now: Array) -> _Advanced:
    rows = state.cell.shape[:-1]
    # A one for the bias: its gradient is then a row of the weight's.
    known = (jnp.broadcast_to(now, (*rows, now.shape[-1])), jnp.ones((*rows, 1)))
    joined = jnp.concatenate([state.hidden, *known], axis=-1)
    enter, forget, candidate, leave = jnp.split(joined @ weight, 4, axis=-1)
    divisor = closed(forget)
    enter, forget, leave = jax.nn.sigmoid(enter), 1.0 / divisor, jax.nn.sigmoid(leave)
    candidate = jnp.tanh(candidate)
    cell = forget * state.cell + enter * candidate
    step = _Step(state.cell, enter, forget, candidate, leave)
    return _Advanced(LSTMState(leave * jnp.tanh(cell), cell), joined, divisor, step)


class _Reached(NamedTuple):
    """How far the way back through a step has come."""

    hidden: Float[Array, "stack batch units"]  # as it was before the step
    cell: Float[Array, "stack batch units"]  # after the step: it is still to be forgotten
    gates: Float[Array, "stack batch gates"]


def _retreat(
    transposed: Float[Array, "stack gates units"], carry: LSTMState, pulled: Array, step: _Step
) -> _Reached:
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
    return _Reached(by_gates @ transposed, cell, by_gates)


def _transposed(
    weight: Array, sloping: int
) -> tuple[Float[Array, "stack gates units"], Float[Array, "stack gates sloping"]]:
    """What leads from the gates back to the hidden state, and to the inputs that have a slope.

    What reaches the inputs can wait until all steps are done: the recursion's products are narrower so.
    """
    units = weight.shape[-1] // 4
    to_hidden, to_inputs = weight[:, :units], weight[:, units : units + sloping]
    return jnp.swapaxes(to_hidden, 1, 2), jnp.swapaxes(to_inputs, 1, 2)


def _zero(weight: Array, inputs: Array) -> LSTMState:
    zero = jnp.zeros((weight.shape[0], inputs.shape[-2], weight.shape[-1] // 4))
    return LSTMState(zero, zero)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _unrolled(sloping: int, weight: Float[Array, "stack units+inputs+1 gates"], inputs: Array) -> Array:
    return _unrolled_forward(sloping, weight, inputs)[0]


def _unrolled_forward(
    sloping: int, weight: Array, inputs: Array
) -> tuple[Array, tuple[Array, Array, list[_Advanced]]]:
    state, steps = _zero(weight, inputs), []
    for now in inputs:
        # With a barrier steps were up to a few percent faster, hardly beyond the noise.
        steps.append(jax.lax.optimization_barrier(_advance(weight, state, now)))
        state = steps[-1].state
    return jnp.stack([step.state.hidden for step in steps]), (weight, inputs, steps)


def _unrolled_backward(
    sloping: int, saved: tuple[Array, Array, list[_Advanced]], cotangent: Array
) -> tuple[Array, Array]:
    weight, inputs, steps = saved
    to_hidden, to_inputs = _transposed(weight, sloping)
    carry = _zero(weight, inputs)
    reached: list[_Reached] = []
    for pulled, step in zip(cotangent[::-1], steps[::-1], strict=True):
        reached.insert(0, _retreat(to_hidden, carry, pulled, step.step))
        # A quotient, not a product: `closed` says why.
        carry = LSTMState(reached[0].hidden, reached[0].cell / step.divisor)
    # The stack comes before the steps: one product for each of its members.
    joined = _rows(jnp.stack([step.joined for step in steps], axis=1))
    gates = _rows(jnp.stack([step.gates for step in reached], axis=1))
    return jnp.einsum("sni,sno->sio", joined, gates), _given_to(inputs, gates @ to_inputs)


_unrolled.defvjp(_unrolled_forward, _unrolled_backward)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _looped(
    count: int, sloping: int, weight: Float[Array, "stack units+inputs+1 gates"], inputs: Array
) -> Array:
    return _looped_forward(count, sloping, weight, inputs)[0]


class _Loop(NamedTuple):
    """What is kept of a loop for the way back."""

    weight: Float[Array, "stack units+inputs+1 gates"]
    inputs: Array
    joined: Float[Array, "piece stack steps batch units+inputs+1"]
    steps: _Step  # stacked


def _looped_forward(count: int, sloping: int, weight: Array, inputs: Array) -> tuple[Array, _Loop]:
    size, start = len(inputs) // count, _zero(weight, inputs)
    # Laid out as the product for the weights' gradient wants it.
    joined = jnp.zeros((count, weight.shape[0], size, inputs.shape[-2], weight.shape[1]))

    def advance(carry: tuple[LSTMState, Array], now: tuple[Array, Array]) -> tuple[Any, tuple[Array, _Step]]:
        (state, joined), (index, inputs) = carry, now
        advanced = _advance(weight, state, inputs)
        place = (index // size, 0, index % size, 0, 0)
        joined = jax.lax.dynamic_update_slice(joined, advanced.joined[None, :, None], place)
        return (advanced.state, joined), (advanced.state.hidden, advanced.step)

    numbered = (jnp.arange(len(inputs)), inputs)
    (_, joined), (hidden, steps) = jax.lax.scan(advance, (start, joined), numbered)
    return hidden, _Loop(weight, inputs, joined, steps)


def _looped_backward(count: int, sloping: int, saved: _Loop, cotangent: Array) -> tuple[Array, Array]:
    weight, inputs, joined, steps = saved
    size = len(inputs) // count
    to_hidden, to_inputs = _transposed(weight, sloping)
    # A product with ones on its diagonal turns the weights round for good, and the loop's are faster for it.
    to_hidden = to_hidden @ jnp.eye(to_hidden.shape[-1])

    def retreat(index: Array, carry: tuple[LSTMState, Array]) -> tuple[LSTMState, Array]:
        state, gates = carry
        # Read where they lie: pieces of them would be copies.
        pulled, step = jax.tree.map(partial(_at, index=index), (cotangent, steps))
        reached = _retreat(to_hidden, state, pulled, step)
        gates = jax.lax.dynamic_update_slice(gates, reached.gates[:, None], (0, index % size, 0, 0))
        return LSTMState(reached.hidden, reached.cell * step.forget), gates

    def piece(carry: tuple[LSTMState, Array, Array], number: Array) -> tuple[Any, Array]:
        state, gates, by_weight = carry
        last = (number + 1) * size - 1
        state, gates = jax.lax.fori_loop(
            0, size, lambda turn, carry: retreat(last - turn, carry), (state, gates)
        )
        product = jnp.einsum("sni,sno->sio", _rows(_at(joined, number)), _rows(gates))
        by_inputs = _given_to(inputs[:size], _rows(gates) @ to_inputs)
        return (state, gates, by_weight + product), by_inputs

    gates = jnp.zeros((*joined.shape[1:-1], weight.shape[-1]))
    start = (_zero(weight, inputs), gates, jnp.zeros_like(weight))
    (*_, by_weight), by_inputs = jax.lax.scan(piece, start, jnp.arange(count), reverse=True)
    return by_weight, by_inputs.reshape(inputs.shape)


_looped.defvjp(_looped_forward, _looped_backward)


def _at(leaf: Array, index: Array) -> Array:
    return jax.lax.dynamic_index_in_dim(leaf, index, keepdims=False)


def _rows(stack: Float[Array, "stack steps batch size"]) -> Float[Array, "stack rows size"]:
    return stack.reshape(len(stack), -1, stack.shape[-1])


def _given_to(inputs: Array, reached: Float[Array, "stack rows sloping"]) -> Array:
    """What reached the inputs: those of all add up what they get from each."""
    *outer, batch, size = inputs.shape
    if len(outer) == 1:
        whole = reached.sum(0).reshape(*outer, batch, -1)
    else:
        whole = jnp.moveaxis(reached.reshape(*outer[::-1], batch, -1), 0, 1)
    return jnp.pad(whole, ((0, 0),) * (whole.ndim - 1) + ((0, size - whole.shape[-1]),))
