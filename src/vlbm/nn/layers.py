"""Layers and networks: optional normalisation, Gaussian and Bernoulli outputs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from vlbm.nn.batch_norm import BatchNorm, Over
from vlbm.nn.distributions import Bernoulli, Normal

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {"silu": jax.nn.silu, "relu": jax.nn.relu}


class LayerKind(NamedTuple):
    """Settings shared by all layers of a model."""

    activation: Literal["silu", "relu"] = "silu"
    normalisation: Literal["none", "batch", "layer"] = "none"
    spread: Literal["scale", "variance"] = "scale"  # output of the softplus in Gaussian networks
    floor: float = 0.01  # added to the softplus


class Linear(eqx.Module):
    """W x + b with initial weights of variance 1/inputs and zero bias.

    Computed as x W^T: under `vmap`, W x transposes activations, which takes a fifth of a training step.
    """

    weight: Float[Array, "outputs inputs"]
    bias: Float[Array, " outputs"]

    def __init__(self, inputs: int, outputs: int, *, key: PRNGKeyArray):
        self.weight, self.bias = _draw_weights(key, outputs, inputs), jnp.zeros(outputs)

    def __call__(self, x: Float[Array, " inputs"]) -> Float[Array, " outputs"]:
        return x @ self.weight.T + self.bias


class LSTMCell(eqx.Module):
    """Gates in the order input, forget, cell, output; forget gates have an initial bias of 1."""

    weight_ih: Float[Array, "gates inputs"]
    weight_hh: Float[Array, "gates units"]
    bias: Float[Array, " gates"]
    hidden_size: int = eqx.field(static=True)

    def __init__(self, inputs: int, units: int, *, key: PRNGKeyArray):
        input_key, recurrent_key = jax.random.split(key)
        self.weight_ih = _draw_weights(input_key, 4 * units, inputs)
        self.weight_hh = _draw_weights(recurrent_key, 4 * units, units)
        self.bias = jnp.zeros(4 * units).at[units : 2 * units].set(1.0)
        self.hidden_size = units

    def __call__(self, x: Float[Array, " inputs"], memory: tuple[Array, Array]) -> tuple[Array, Array]:
        hidden, cell = memory
        gates = x @ self.weight_ih.T + hidden @ self.weight_hh.T + self.bias
        enter, forget, candidate, leave = jnp.split(gates, 4)
        cell = jax.nn.sigmoid(forget) * cell + jax.nn.sigmoid(enter) * jnp.tanh(candidate)
        return jax.nn.sigmoid(leave) * jnp.tanh(cell), cell


class Dense(eqx.Module):
    """A hidden layer: linear, optional normalisation, activation."""

    hidden: Linear
    norm: BatchNorm | eqx.nn.LayerNorm | None
    activation: str = eqx.field(static=True)

    def __init__(self, inputs: int, outputs: int, kind: LayerKind, *, key: PRNGKeyArray):
        self.hidden = Linear(inputs, outputs, key=key)
        self.norm = None
        if kind.normalisation != "none":
            self.norm = BatchNorm(outputs) if kind.normalisation == "batch" else eqx.nn.LayerNorm(outputs)
        self.activation = kind.activation

    def __call__(self, x: Float[Array, " inputs"], over: Over | None = None) -> tuple[Array, Any]:
        x, moments = self.hidden(x), None
        if isinstance(self.norm, BatchNorm):
            x, moments = self.norm(x, over)
        elif self.norm is not None:
            x = self.norm(x)
        return ACTIVATIONS[self.activation](x), moments


class MLP(eqx.Module):
    """Hidden layers, then a linear one. Returns its outputs and the moments of its batch norms."""

    layers: tuple[Dense, ...]
    last: Linear

    def __init__(self, sizes: Sequence[int], kind: LayerKind, *, key: PRNGKeyArray):
        *keys, last_key = jax.random.split(key, len(sizes) - 1)
        pairs = zip(itertools.pairwise(sizes[:-1]), keys, strict=True)
        self.layers = tuple(Dense(*pair, kind, key=key) for pair, key in pairs)
        self.last = Linear(*sizes[-2:], key=last_key)

    def __call__(self, x: Float[Array, " inputs"], over: Over | None = None) -> tuple[Array, Any]:
        collected = []
        for layer in self.layers:
            x, moments = layer(x, over)
            collected.append(moments)
        return self.last(x), tuple(collected)


class GaussianMLP(eqx.Module):
    """A network whose outputs are means, and through softplus scales or variances."""

    mlp: MLP
    kind: LayerKind = eqx.field(static=True)

    def __init__(self, sizes: Sequence[int], kind: LayerKind, *, key: PRNGKeyArray):
        self.mlp = MLP((*sizes[:-1], 2 * sizes[-1]), kind, key=key)
        self.kind = kind

    def __call__(self, x: Float[Array, " inputs"], over: Over | None = None) -> tuple[Normal, Any]:
        outputs, moments = self.mlp(x, over)
        mean, spread = jnp.split(outputs, 2)
        spread = jax.nn.softplus(spread) + self.kind.floor
        return Normal(mean, jnp.sqrt(spread) if self.kind.spread == "variance" else spread), moments


class BernoulliMLP(eqx.Module):
    """A network with one logit, initialised at the base rate."""

    mlp: MLP

    def __init__(self, sizes: Sequence[int], kind: LayerKind, *, base_rate: float, key: PRNGKeyArray):
        self.mlp = start_at_rate(MLP((*sizes, 1), kind, key=key), base_rate)

    def __call__(self, x: Float[Array, " inputs"], over: Over | None = None) -> tuple[Bernoulli, Any]:
        outputs, moments = self.mlp(x, over)
        return Bernoulli(outputs[0]), moments


def start_at_rate(mlp: MLP, base_rate: float) -> MLP:
    """The network with its last bias initialised to the logit of a rate."""
    logit = np.log(base_rate) - np.log1p(-base_rate)
    return eqx.tree_at(lambda mlp: mlp.last.bias, mlp, replace_fn=lambda bias: bias.at[-1].set(logit))


def _draw_weights(key: PRNGKeyArray, outputs: int, inputs: int) -> Float[Array, "outputs inputs"]:
    bound = (3.0 / inputs) ** 0.5
    return jax.random.uniform(key, (outputs, inputs), minval=-bound, maxval=bound)
