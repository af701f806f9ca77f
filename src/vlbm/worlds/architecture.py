"""Sizes and initialisation of the networks of a branching model."""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from vlbm.nn.layers import MLP, BernoulliMLP, GaussianMLP, LayerKind, LSTMCell
from vlbm.worlds.vlbm import Branch, BranchingModel, Encoder


class Sizes(NamedTuple):
    """Sizes of the networks; a termination rate of 0 leaves p(d_t|z_t) out."""

    observations: int
    actions: int
    latents: int
    units: int
    head_units: tuple[int, ...]
    g_units: tuple[int, ...]
    layer: LayerKind
    termination_rate: float


def make_model(
    sizes: Sizes,
    *,
    branches: int,
    change: Float[Array, " obs"] | None,
    ensemble: bool,
    key: PRNGKeyArray,
    **fields: Any,
) -> BranchingModel:
    """An untrained model; branches differ by their initial weights and have equal mixture weights."""
    encoder_key, branch_key = jax.random.split(key)
    if ensemble:
        keys = jax.random.split(encoder_key, branches)
        encoder = eqx.filter_vmap(lambda key: make_encoder(sizes, key=key))(keys)
    else:
        encoder = make_encoder(sizes, key=encoder_key)
    return BranchingModel(
        encoder=encoder,
        branches=eqx.filter_vmap(lambda key: make_branch(sizes, change, key=key))(
            jax.random.split(branch_key, branches)
        ),
        weight_root=jnp.ones(branches),
        ensemble=ensemble,
        **fields,
    )


def make_encoder(sizes: Sizes, *, key: PRNGKeyArray) -> Encoder:
    keys, layer = jax.random.split(key, 3), sizes.layer
    inputs = sizes.latents + sizes.actions + sizes.observations
    return Encoder(
        initial=GaussianMLP((sizes.observations, *sizes.head_units, sizes.latents), layer, key=keys[0]),
        lstm=LSTMCell(inputs, sizes.units, key=keys[1]),
        later=GaussianMLP((sizes.units, sizes.units, sizes.latents), layer, key=keys[2]),
    )


def make_branch(sizes: Sizes, change: Float[Array, " obs"] | None, *, key: PRNGKeyArray) -> Branch:
    """A branch that emits states, or differences if the deviation of logged ones is given."""
    keys, layer, rate = jax.random.split(key, 6), sizes.layer, sizes.termination_rate
    inputs = sizes.latents + sizes.actions + (0 if change is None else sizes.observations)
    heads = (sizes.latents, *sizes.head_units)
    return Branch(
        lstm=LSTMCell(inputs, sizes.units, key=keys[0]),
        g=MLP((sizes.units, *sizes.g_units, sizes.units), layer, key=keys[1]),
        transition=GaussianMLP((sizes.units, sizes.units, sizes.latents), layer, key=keys[2]),
        state=GaussianMLP((*heads, sizes.observations), layer, key=keys[3]),
        reward=GaussianMLP((*heads, 1), layer, key=keys[4]),
        termination=BernoulliMLP(heads, layer, base_rate=rate, key=keys[5]) if rate else None,
        change=change,
    )
