"""What the branching model is trained to maximise."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, Scalar

from vlbm.devices import share
from vlbm.models.branching import BranchingModel
from vlbm.models.latent import Decoder, Encoder, Posterior, recur
from vlbm.models.passage import Given, Traced, follow, score, through
from vlbm.models.terms import Terms, Weighting
from vlbm.networks import running_averages, with_running_averages
from vlbm.pieces import cut, summed
from vlbm.windows import Window

# Steps that go through the heads at once. What longer windows keep for the way back fits in no cache.
PIECE = 25


class Judged(NamedTuple):
    """A model on a batch of windows."""

    total: Scalar  # to be maximised
    terms: Terms  # to be told: gradients flow through the total alone
    model: BranchingModel  # its running averages moved on


def objective(model: BranchingModel, window: Window, weighting: Weighting, *, key: PRNGKeyArray) -> Judged:
    """How well a model does on a batch of windows.

    Windows longer than a piece go through the heads piece by piece, and batch normalisation is then over
    the batch and the steps of a piece. The recursions go over the whole.
    """
    # Drawn for the whole batch, whatever part of it is this device's.
    noise = share(_noise(model, window, weighting, key=key), axis=2)
    valid, steps = window.valid, jnp.maximum(window.valid.sum(), 1)
    window = share(window, axis=1)
    initial_divergence, traced, encoder = _recur(model, window, noise)
    given = _given(model, window, noise)
    judge, shared = partial(_judge, weighting), (model.decoder, model.weight)
    count = -(-len(valid) // PIECE)
    if count == 1:
        total, (terms, averages) = judge(shared, traced, given)
    else:
        total, (terms, averages) = summed(judge, count, shared, traced, given)
        weight = cut(valid, count).whole.reshape(count, -1).sum(1) / steps
        terms = jax.tree.map(lambda term: term.sum(0), terms)
        averages = jax.tree.map(lambda average: jnp.tensordot(weight, average, axes=1), averages)
    terms = terms._replace(initial_divergence=initial_divergence.sum())
    before = weighting.bound_weight * weighting.initial_divergence_weight * terms.initial_divergence
    return Judged(
        (total - before) / steps,
        jax.tree.map(lambda term: term / steps, terms),
        replace(model, encoder=encoder, decoder=with_running_averages(model.decoder, averages)),
    )


def evidence_lower_bound(
    model: BranchingModel, window: Window, *, key: PRNGKeyArray
) -> Float[Array, "branch batch"]:
    """Each branch's bound on log p(states, rewards | actions) of each window, in raw units.

    One sample of the latents; the expectation over `key` is the bound.
    """
    weighting = Weighting(mixture="none", alignment="none")
    noise = _noise(model, window, weighting, key=key)
    initial_divergence, traced, _ = _recur(model, window, noise, training=False)
    branch, _, _ = follow(model.decoder, traced, _given(model, window, noise), weighting, training=False)
    # The density of raw numbers is that of standardised ones divided by the scale.
    per_observation = jnp.log(model.observation.scale).sum()
    per_reward = jnp.log(model.reward.scale).sum()
    stretch = window.observed.sum(0) * per_observation + window.valid.sum(0) * per_reward
    return branch.reconstruction - initial_divergence - branch.divergence - stretch


def _noise(
    model: BranchingModel, window: Window, weighting: Weighting, *, key: PRNGKeyArray
) -> Float[Array, "encoders+branches steps+1 batch latent"]:
    """What is random about the encoders' latents, and the branches' own if they predict any."""
    predicting = model.branches if weighting.mixture == "branches" else 0
    shape = (model.encoders + predicting, *window.observed.shape, model.latents)
    # One draw for all: every separate draw adds seconds of compilation. The barrier keeps the compiler
    # from inlining the generator into every use of its numbers.
    return jax.lax.optimization_barrier(jax.random.normal(key, shape))


def _recur(
    model: BranchingModel,
    window: Window,
    noise: Float[Array, "encoders+branches steps+1 batch latent"],
    *,
    training: bool = True,
) -> tuple[Float[Array, "branch batch"], Traced, Encoder]:
    """KL(q(z_0) || N(0, I)), what recursions leave behind, and the encoders with their averages moved on."""
    observation, action = model.observation.apply(window.observation), model.action_inputs(window.action)

    def infer(encoder: Encoder, noise: Array) -> tuple[Array, Posterior, Encoder]:
        features, initial = through(encoder.initial, observation[0], window.observed[0], training)
        first = encoder.initial_head(features)
        moved = eqx.tree_at(lambda tree: tree.initial, encoder, initial)
        posterior = encoder.infer(observation, action, first=first, noise=noise)
        return first.kl_from_standard().sum(-1), posterior, moved

    # Time comes first, whatever stands before the batch: pieces of it are cut.
    axes: Any = (0, 1, eqx.if_array(0))
    divergence, posterior, encoder = eqx.filter_vmap(infer, out_axes=axes)(
        model.encoder, noise[: model.encoders]
    )
    if model.shared_encoder:
        posterior = jax.tree.map(lambda leaf: leaf[:, 0], posterior)

    hidden = recur(model.decoder, posterior.latent[:-1], action)
    later = jax.tree.map(lambda leaf: leaf[1:], posterior.distribution)
    return (
        jnp.broadcast_to(divergence, (model.branches, *divergence.shape[1:])),
        Traced(posterior.latent, later, posterior.hidden, hidden),
        encoder,
    )


def _given(
    model: BranchingModel, window: Window, noise: Float[Array, "encoders+branches steps+1 batch latent"]
) -> Given:
    own = noise[model.encoders :, 1:]
    return Given(
        observation=model.observation.apply(window.observation),
        observed=window.observed,
        reward=model.reward.apply(window.reward[..., None])[..., 0],
        ended=window.ended,
        valid=window.valid,
        noise=jnp.moveaxis(own, 0, 1) if len(own) else None,
    )


def _judge(
    weighting: Weighting, shared: tuple[Decoder, Array], traced: Traced, given: Given
) -> tuple[Scalar, tuple[Terms, list[Array]]]:
    terms, moved = score(*shared, traced, given, weighting)
    return terms.total(weighting), (terms, running_averages(moved))
