"""Scans over time whose weight gradients are taken once, after the scan, not step by step within it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from vlbm.networks import LSTM, LSTMState

# Steps per turn of a compiled loop: a default window is one turn, without a loop's copies between steps.
UNROLL = 5

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

        return jax.lax.scan(advance, start, offsets[0], unroll=UNROLL)[1]

    def factors(weights: Any, offsets: Any, start: LSTMState, hidden: Array) -> tuple[Array, ...]:
        return (delayed(start.hidden, hidden),)

    start = lstm.zero(projected.shape[1:-1])
    return hoist_weight_gradients(run, factors)((lstm.recurrent.weight,), (projected,), start)


def delayed(first: Float[Array, "batch size"], later: Float[Array, "steps batch size"]) -> Array:
    """What each step found: `first`, then the outputs of the steps before."""
    return jnp.concatenate([first[None], later[:-1]])
