"""Networks of Equinox's layers: hidden ones that may be normalised, last ones that are distributions."""

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
    """How all layers of a model are."""

    activation: Literal["silu", "relu"] = "silu"
    normalisation: Literal["none", "batch"] = "none"
    spread: Literal["scale", "variance"] = "scale"  # what softplus gives in Gaussian networks
    floor: float = 0.01  # of it


class Dense(eqx.Module):
    """A hidden layer: linear, normalised where that is asked for, then smooth or rectified."""

    hidden: eqx.nn.Linear
    norm: BatchNorm | None
    activation: str = eqx.field(static=True)

    def __init__(self, inputs: int, outputs: int, kind: LayerKind, *, key: PRNGKeyArray):
        self.hidden = make_linear(inputs, outputs, key=key)
        self.norm = BatchNorm(outputs) if kind.normalisation == "batch" else None
        self.activation = kind.activation

    def __call__(self, x: Float[Array, " inputs"], over: Over | None = None) -> tuple[Array, Any]:
        x, moments = self.hidden(x), None
        if self.norm is not None:
            x, moments = self.norm(x, over)
        return ACTIVATIONS[self.activation](x), moments


class MLP(eqx.Module):
    """Hidden layers, then a linear one. Beside its outputs it gives the moments of what was normalised."""

    layers: tuple[Dense, ...]
    last: eqx.nn.Linear

    def __init__(self, sizes: Sequence[int], kind: LayerKind, *, key: PRNGKeyArray):
        *keys, last_key = jax.random.split(key, len(sizes) - 1)
        pairs = zip(itertools.pairwise(sizes[:-1]), keys, strict=True)
        self.layers = tuple(Dense(*pair, kind, key=key) for pair, key in pairs)
        self.last = make_linear(*sizes[-2:], key=last_key)

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
    """A network with one logit that starts at the base rate: rare events need no training to be rare."""

    mlp: MLP

    def __init__(self, sizes: Sequence[int], kind: LayerKind, *, base_rate: float, key: PRNGKeyArray):
        self.mlp = start_at_rate(MLP((*sizes, 1), kind, key=key), base_rate)

    def __call__(self, x: Float[Array, " inputs"], over: Over | None = None) -> tuple[Bernoulli, Any]:
        outputs, moments = self.mlp(x, over)
        return Bernoulli(outputs[0]), moments


def start_at_rate(mlp: MLP, base_rate: float) -> MLP:
    """The network whose last output starts as the logit of a rate."""
    logit = np.log(base_rate) - np.log1p(-base_rate)
    return eqx.tree_at(lambda mlp: mlp.last.bias, mlp, replace_fn=lambda bias: bias.at[-1].set(logit))


def make_linear(inputs: int, outputs: int, *, key: PRNGKeyArray) -> eqx.nn.Linear:
    """Equinox's layer with weights of variance 1/inputs, three times its own, and no first bias."""
    layer = eqx.nn.Linear(inputs, outputs, key=key)
    new = (_draw_weights(key, outputs, inputs), jnp.zeros(outputs))
    return eqx.tree_at(lambda layer: (layer.weight, layer.bias), layer, new)


def make_lstm(inputs: int, units: int, *, key: PRNGKeyArray) -> eqx.nn.LSTMCell:
    """Equinox's cell, weights as above, with forget gates that start open."""
    input_key, recurrent_key = jax.random.split(key)
    cell = eqx.nn.LSTMCell(inputs, units, key=key)
    # Gates stand in the order input, forget, cell, output.
    bias = jnp.zeros(4 * units).at[units : 2 * units].set(1.0)
    weights = _draw_weights(input_key, 4 * units, inputs), _draw_weights(recurrent_key, 4 * units, units)
    return eqx.tree_at(lambda cell: (cell.weight_ih, cell.weight_hh, cell.bias), cell, (*weights, bias))


def _draw_weights(key: PRNGKeyArray, outputs: int, inputs: int) -> Float[Array, "outputs inputs"]:
    bound = (3.0 / inputs) ** 0.5
    return jax.random.uniform(key, (outputs, inputs), minval=-bound, maxval=bound)
