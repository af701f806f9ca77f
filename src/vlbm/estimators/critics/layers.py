"""Layers that take whole batches: linear, layer normalisation and hidden layers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from vlbm.parallel import to_device

NormalisationKind = Literal["none", "layer"]


class Linear(eqx.Module):
    """x W + b on the last axis."""

    weight: Float[Array, "inputs outputs"]
    bias: Float[Array, " outputs"]

    def __init__(self, inputs: int, outputs: int, *, random: np.random.Generator, gain: float = 1.0):
        bound = gain * (3.0 / inputs) ** 0.5
        self.weight = to_device(random.uniform(-bound, bound, (inputs, outputs)))
        self.bias = to_device(np.zeros(outputs))

    def __call__(self, inputs: Float[Array, "*batch inputs"]) -> Float[Array, "*batch outputs"]:
        return inputs @ self.weight + self.bias

    def columns(self, inputs: Float[Array, "*stack inputs batch"]) -> Float[Array, "*stack outputs batch"]:
        """The same where a batch lies in columns; of stacked layers each has a batch of its own."""
        return jnp.einsum("...io,...ib->...ob", self.weight, inputs) + self.bias[..., None]


class LayerNorm(eqx.Module):
    """Normalises each vector by its own mean and deviation."""

    gain: Float[Array, " size"]
    shift: Float[Array, " size"]

    def __init__(self, size: int):
        self.gain, self.shift = to_device(np.ones(size)), to_device(np.zeros(size))

    def __call__(self, inputs: Float[Array, "*batch size"]) -> Float[Array, "*batch size"]:
        centred = inputs - inputs.mean(-1, keepdims=True)
        variance = (centred**2).mean(-1, keepdims=True)
        return centred * jax.lax.rsqrt(variance + 1e-5) * self.gain + self.shift

    def columns(self, inputs: Float[Array, "*stack size batch"]) -> Float[Array, "*stack size batch"]:
        """The same where a batch lies in columns; of stacked layers each has a batch of its own."""
        centred = inputs - inputs.mean(-2, keepdims=True)
        variance = (centred**2).mean(-2, keepdims=True)
        return centred * jax.lax.rsqrt(variance + 1e-5) * self.gain[..., None] + self.shift[..., None]


class Identity(eqx.Module):
    """No normalisation."""

    def __call__(self, inputs: Array) -> Array:
        return inputs

    def columns(self, inputs: Array) -> Array:
        return inputs


def make_normalisation(kind: NormalisationKind, size: int) -> LayerNorm | Identity:
    return Identity() if kind == "none" else LayerNorm(size)


class MLP(eqx.Module):
    """Hidden layers with rectifiers; the last layer too is hidden (heads follow it)."""

    layers: tuple[Linear, ...]
    norms: tuple[LayerNorm | Identity, ...]

    def __init__(
        self, sizes: Sequence[int], *, normalisation: NormalisationKind, random: np.random.Generator
    ):
        pairs = itertools.pairwise(sizes)
        self.layers = tuple(Linear(*pair, random=random, gain=2**0.5) for pair in pairs)
        self.norms = tuple(make_normalisation(normalisation, size) for size in sizes[1:])

    def __call__(self, inputs: Float[Array, "*batch inputs"]) -> Float[Array, "*batch outputs"]:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            inputs = jax.nn.relu(norm(layer(inputs)))
        return inputs


def stacked(modules: list[Any]) -> Any:
    """Modules of one shape as one, with a leading axis."""
    return jax.tree.map(lambda *leaves: to_device(np.stack(leaves)), *modules)
