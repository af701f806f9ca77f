"""Layers that take whole batches: linear, normalisation, MLP, LSTM, and heads that end in a distribution."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from vlbm.backward import affine, softplus
from vlbm.devices import on_device
from vlbm.distributions import Bernoulli, Normal
from vlbm.normalising import FLOOR, normalised_layer

NormalisationKind = Literal["none", "layer", "batch"]
MOMENTUM = 0.99  # of the running averages
FAINTEST = -60.0  # a gate below this is shut; its slope would leave the numbers


class Linear(eqx.Module):
    """x W + b on the last axis."""

    weight: Float[Array, "inputs outputs"]
    bias: Float[Array, " outputs"]

    def __init__(self, inputs: int, outputs: int, *, random: np.random.Generator, gain: float = 1.0):
        # Drawn by NumPy: compiling a program that draws weights takes longer than many training steps.
        bound = gain * (3.0 / inputs) ** 0.5
        self.weight = on_device(random.uniform(-bound, bound, (inputs, outputs)))
        self.bias = on_device(np.zeros(outputs))

    def __call__(self, inputs: Float[Array, "*batch inputs"]) -> Float[Array, "*batch outputs"]:
        return affine(inputs, self.weight, self.bias)

    def columns(self, inputs: Float[Array, "*stack inputs batch"]) -> Float[Array, "*stack outputs batch"]:
        """The same where a batch lies in columns; of stacked layers each has a batch of its own."""
        return jnp.einsum("...io,...ib->...ob", self.weight, inputs) + self.bias[..., None]

    def replaced(self, weight: Float[Array, "inputs outputs"], bias: Float[Array, " outputs"]) -> Linear:
        return eqx.tree_at(lambda layer: (layer.weight, layer.bias), self, (weight, bias))


class LayerNorm(eqx.Module):
    """Normalises each vector by its own mean and deviation."""

    gain: Float[Array, " size"]
    shift: Float[Array, " size"]

    def __init__(self, size: int):
        self.gain, self.shift = on_device(np.ones(size)), on_device(np.zeros(size))

    def __call__(self, inputs: Float[Array, "*batch size"]) -> Float[Array, "*batch size"]:
        centred = inputs - inputs.mean(-1, keepdims=True)
        variance = (centred**2).mean(-1, keepdims=True)
        return centred * jax.lax.rsqrt(variance + 1e-5) * self.gain + self.shift

    def columns(self, inputs: Float[Array, "*stack size batch"]) -> Float[Array, "*stack size batch"]:
        """The same where a batch lies in columns; of stacked layers each has a batch of its own."""
        centred = inputs - inputs.mean(-2, keepdims=True)
        variance = (centred**2).mean(-2, keepdims=True)
        return centred * jax.lax.rsqrt(variance + 1e-5) * self.gain[..., None] + self.shift[..., None]

    def after(self, layer: Linear, inputs: Float[Array, "*batch inputs"]) -> Float[Array, "*batch size"]:
        return self(layer(inputs))

    def merged(self, layer: Linear) -> tuple[Linear, LayerNorm]:
        return layer, self

    def train(
        self, layer: Linear, inputs: Float[Array, "*batch inputs"], valid: Bool[Array, "*batch"]
    ) -> tuple[Float[Array, "*batch size"], LayerNorm]:
        return self.after(layer, inputs), self


class BatchNorm(eqx.Module):
    """Normalises each unit over the valid part of a batch; evaluation uses running averages."""

    gain: Float[Array, " size"]
    shift: Float[Array, " size"]
    mean: Float[Array, " size"]
    variance: Float[Array, " size"]

    def __init__(self, size: int):
        self.gain, self.shift = on_device(np.ones(size)), on_device(np.zeros(size))
        self.mean, self.variance = on_device(np.zeros(size)), on_device(np.ones(size))

    def after(self, layer: Linear, inputs: Float[Array, "*batch inputs"]) -> Float[Array, "*batch size"]:
        """The layer's outputs, normalised by the running averages."""
        return self.merged(layer)[0](inputs)

    def merged(self, layer: Linear) -> tuple[Linear, Identity]:
        """By running averages a layer and its normalisation are one other layer."""
        mean, variance = jax.lax.stop_gradient((self.mean, self.variance))
        rate = jax.lax.rsqrt(variance + FLOOR) * self.gain
        return layer.replaced(layer.weight * rate, (layer.bias - mean) * rate + self.shift), Identity()

    def train(
        self, layer: Linear, inputs: Float[Array, "*batch inputs"], valid: Bool[Array, "*batch"]
    ) -> tuple[Float[Array, "*batch size"], BatchNorm]:
        """The layer's outputs by their own averages, and this with its running averages moved on."""
        rows, counts = inputs.reshape(-1, inputs.shape[-1]), valid.reshape(-1).astype(inputs.dtype)
        outputs, mean, variance = normalised_layer(rows, layer.weight, counts, self.gain, self.shift)

        def moved(old: Array, new: Array) -> Array:
            return jax.lax.stop_gradient(MOMENTUM * old + (1.0 - MOMENTUM) * new)

        after = eqx.tree_at(
            lambda norm: (norm.mean, norm.variance),
            self,
            (moved(self.mean, mean + layer.bias), moved(self.variance, variance)),
        )
        return outputs.reshape(*inputs.shape[:-1], -1), after


class Identity(eqx.Module):
    """No normalisation."""

    def after(self, layer: Linear, inputs: Array) -> Array:
        return layer(inputs)

    def merged(self, layer: Linear) -> tuple[Linear, Identity]:
        return layer, self

    def columns(self, inputs: Array) -> Array:
        return inputs

    def train(self, layer: Linear, inputs: Array, valid: Array) -> tuple[Array, Identity]:
        return layer(inputs), self


def make_normalisation(kind: NormalisationKind, size: int) -> LayerNorm | BatchNorm | Identity:
    if kind == "none":
        return Identity()
    return LayerNorm(size) if kind == "layer" else BatchNorm(size)


class MLP(eqx.Module):
    """Hidden layers with rectifiers; the last layer too is hidden (heads follow it)."""

    layers: tuple[Linear, ...]
    norms: tuple[LayerNorm | BatchNorm | Identity, ...]

    def __init__(
        self, sizes: Sequence[int], *, normalisation: NormalisationKind, random: np.random.Generator
    ):
        self.layers = tuple(
            Linear(inputs, outputs, random=random, gain=2**0.5)
            for inputs, outputs in itertools.pairwise(sizes)
        )
        self.norms = tuple(make_normalisation(normalisation, size) for size in sizes[1:])

    def __call__(self, inputs: Float[Array, "*batch inputs"]) -> Float[Array, "*batch outputs"]:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            inputs = jax.nn.relu(norm.after(layer, inputs))
        return inputs

    def merged(self) -> MLP:
        """The same network outside training, with normalisations merged into layers where they can be."""
        pairs = [norm.merged(layer) for layer, norm in zip(self.layers, self.norms, strict=True)]
        layers, norms = zip(*pairs, strict=True)
        return eqx.tree_at(lambda mlp: (mlp.layers, mlp.norms), self, (layers, norms), is_leaf=_is_norm)

    def train(
        self, inputs: Float[Array, "*batch inputs"], valid: Bool[Array, "*batch"]
    ) -> tuple[Float[Array, "*batch outputs"], MLP]:
        """The outputs with batch statistics, and this network with its running averages moved on."""
        after = []
        for layer, norm in zip(self.layers, self.norms, strict=True):
            outputs, moved = norm.train(layer, inputs, valid)
            inputs = jax.nn.relu(outputs)
            after.append(moved)
        return inputs, eqx.tree_at(lambda mlp: mlp.norms, self, tuple(after), is_leaf=_is_norm)


class GaussianHead(eqx.Module):
    """Features to a diagonal Gaussian: mean linear, scale softplus, bounded below."""

    linear: Linear
    floor: float = eqx.field(static=True)

    def __init__(self, inputs: int, outputs: int, *, floor: float, random: np.random.Generator):
        self.linear = Linear(inputs, 2 * outputs, random=random)
        self.floor = floor

    def __call__(self, features: Float[Array, "*batch inputs"]) -> Normal:
        return self.distribution(self.linear(features))

    def distribution(self, outputs: Float[Array, "*batch twice_outputs"]) -> Normal:
        mean, spread = jnp.split(outputs, 2, axis=-1)
        return Normal(mean, softplus(spread) + self.floor)


class BernoulliHead(eqx.Module):
    """Features to the log-odds of one event, starting from the odds seen in the data."""

    linear: Linear

    def __init__(self, inputs: int, *, base_rate: float, random: np.random.Generator):
        linear = Linear(inputs, 1, random=random)
        log_odds = np.log(base_rate) - np.log1p(-base_rate)
        self.linear = eqx.tree_at(lambda layer: layer.bias, linear, on_device(np.full(1, log_odds)))

    def __call__(self, features: Float[Array, "*batch inputs"]) -> Bernoulli:
        return Bernoulli(self.linear(features)[..., 0])


class LSTMState(NamedTuple):
    hidden: Float[Array, "*batch units"]
    cell: Float[Array, "*batch units"]


class LSTM(eqx.Module):
    """A recurrent cell in two parts: what is known beforehand, and what depends on the recursion.

    `project` takes the inputs of all steps at once, outside a scan. What only the recursion knows (the hidden
    state, and `feedback`: values sampled on the way) is multiplied by the recurrent weight.
    """

    inputs: Linear
    recurrent: Linear
    units: int = eqx.field(static=True)

    def __init__(self, inputs: int, units: int, *, feedback: int = 0, random: np.random.Generator):
        projection = Linear(inputs, 4 * units, random=random)
        # An open forget gate keeps early gradients alive.
        open_gate = on_device(np.repeat([0.0, 1.0, 0.0, 0.0], units))
        self.inputs = eqx.tree_at(lambda layer: layer.bias, projection, open_gate)
        self.recurrent = Linear(units + feedback, 4 * units, random=random)
        self.units = units

    def zero(self, batch: tuple[int, ...]) -> LSTMState:
        zeros = jnp.zeros((*batch, self.units))
        return LSTMState(zeros, zeros)

    def project(self, inputs: Float[Array, "*batch inputs"]) -> Float[Array, "*batch gates"]:
        return self.inputs(inputs)

    def merged(self) -> LSTM:
        """The same cell with all inputs fed back: none are projected before, so that one weight does all."""
        whole = (self._whole_weight, self.inputs.weight[:0])
        return eqx.tree_at(lambda lstm: (lstm.recurrent.weight, lstm.inputs.weight), self, whole)

    def step(self, state: LSTMState, *inputs: Array) -> LSTMState:
        """One step, with feedback if there is any, then inputs that are not projected before: one product."""
        joined = jnp.concatenate([state.hidden, *inputs], axis=-1)
        return self.gated(state, joined @ self._whole_weight + self.inputs.bias)

    @property
    def _whole_weight(self) -> Float[Array, "units+inputs gates"]:
        return jnp.concatenate([self.recurrent.weight, self.inputs.weight])

    @staticmethod
    def gated(state: LSTMState, gates: Float[Array, "*batch gates"]) -> LSTMState:
        enter, forget, candidate, leave = jnp.split(gates, 4, axis=-1)
        cell = state.cell / closed(forget) + jax.nn.sigmoid(enter) * jnp.tanh(candidate)
        return LSTMState(jax.nn.sigmoid(leave) * jnp.tanh(cell), cell)


def closed(gate: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """One over the gate's sigmoid: what a cell is divided by to be forgotten.

    What flows back to the cell is then a quotient too. The compiler computes quotients once, but products
    again for everything they flow into, step by step: the way back took half as long again.
    """
    return 1.0 + jnp.exp(-jnp.maximum(gate, FAINTEST))


def running_averages(tree: Any) -> list[Array]:
    """The means and variances that batch normalisation keeps, wherever in the tree."""
    norms = [node for node in jax.tree.leaves(tree, is_leaf=_is_norm) if isinstance(node, BatchNorm)]
    return [average for norm in norms for average in (norm.mean, norm.variance)]


def with_running_averages(tree: Any, averages: list[Array]) -> Any:
    """The tree with others in their place."""
    return eqx.tree_at(running_averages, tree, averages) if averages else tree


def _is_norm(node: object) -> bool:
    return isinstance(node, LayerNorm | BatchNorm | Identity)


def stacked(modules: list[Any]) -> Any:
    """Modules of one shape as one, with a leading axis."""
    return jax.tree.map(lambda *leaves: on_device(np.stack(leaves)), *modules)
