"""What the branching model is trained to maximise."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray, Scalar, UInt32

from vlbm.devices import everywhere, own_groups, share
from vlbm.models.branching import BranchingModel
from vlbm.models.latent import Decoder, Encoder, Posterior, recur
from vlbm.models.passage import Given, Traced, follow, score, through
from vlbm.models.terms import Terms, Weighting
from vlbm.networks import MLP, running_averages, with_running_averages
from vlbm.pieces import cut, summed
from vlbm.windows import Window

# Steps that go through the heads at once. What longer windows keep for the way back fits in no cache.
PIECE = 10


class Judged(NamedTuple):
    """A model on a batch of windows."""

    total: Scalar  # to be maximised
    terms: Terms  # to be told: gradients flow through the total alone
    model: BranchingModel  # its running averages moved on


def objective(model: BranchingModel, window: Window, weighting: Weighting, *, key: PRNGKeyArray) -> Judged:
    """How well a model does on a batch of windows.

    Windows longer than a piece go through the heads piece by piece, and those of batch normalisation group by
    group: it is over the steps of a piece in the windows of a group. The recursions go over the whole.
    """
    # Drawn for the whole batch, whatever part of it is this device's.
    noise = share(_noise(model, window, key=key), axis=2)
    luck = share(_luck(window, weighting, key=key), axis=1)
    steps, batch = jnp.maximum(window.valid.sum(), 1), window.valid.shape[1]
    groups = own_groups(batch) if running_averages(model.decoder) else 1
    window = share(window, axis=1)
    initial_divergence, traced, encoder = _recur(model, window, noise, groups=groups)
    given = _given(model, window, luck)
    judge, shared = partial(_judge, weighting), (model.decoder, model.weight)
    count = -(-len(window.valid) // PIECE)
    if count * groups == 1:
        total, (terms, averages) = judge(shared, traced, given)
        averages = [average * (window.valid.sum() / steps) for average in averages]
    else:
        total, (terms, averages) = summed(judge, count, groups, shared, traced, given)
        valid = cut(window.valid, count).whole
        weight = valid.reshape(count, -1, groups, valid.shape[1] // groups).sum((1, 3)).reshape(-1) / steps
        terms = jax.tree.map(lambda term: term.sum(0), terms)
        averages = [jnp.tensordot(weight, average, axes=1) for average in averages]
    decoder = model.decoder
    if averages:
        begun = [average * (window.valid.shape[1] / batch) for average in running_averages(encoder)]
        averages, begun = everywhere((averages, begun))
        encoder, decoder = with_running_averages(encoder, begun), with_running_averages(decoder, averages)
    terms = terms._replace(initial_divergence=initial_divergence.sum())
    before = weighting.bound_weight * weighting.initial_divergence_weight * terms.initial_divergence
    return Judged(
        (total - before) / steps,
        jax.tree.map(lambda term: term / steps, terms),
        replace(model, encoder=encoder, decoder=decoder),
    )


def evidence_lower_bound(
    model: BranchingModel, window: Window, *, key: PRNGKeyArray
) -> Float[Array, "branch batch"]:
    """Each branch's bound on log p(states, rewards | actions) of each window, in raw units.

    One sample of the latents; the expectation over `key` is the bound.
    """
    weighting = Weighting(mixture="none", alignment="none")
    noise = _noise(model, window, key=key)
    initial_divergence, traced, _ = _recur(model, window, noise, training=False)
    branch, _, _ = follow(model.decoder, traced, _given(model, window, None), weighting, training=False)
    # The density of raw numbers is that of standardised ones divided by the scale.
    per_observation = jnp.log(model.observation.scale).sum()
    per_reward = jnp.log(model.reward.scale).sum()
    stretch = window.observed.sum(0) * per_observation + window.valid.sum(0) * per_reward
    return branch.reconstruction - initial_divergence - branch.divergence - stretch


def _noise(
    model: BranchingModel, window: Window, *, key: PRNGKeyArray
) -> Float[Array, "encoders steps+1 batch latent"]:
    """What is random about the encoders' latents."""
    shape = (model.encoders, *window.observed.shape, model.latents)
    # The barrier keeps the compiler from inlining the generator into every use of its numbers.
    return jax.lax.optimization_barrier(jax.random.normal(key, shape))


def _luck(
    window: Window, weighting: Weighting, *, key: PRNGKeyArray
) -> UInt32[Array, "steps batch 2"] | None:
    """Where branches predict latents of their own, a key for every step: its noise is drawn where it is used.

    Noise for all steps of long windows at once is too much for a cache, and a device needs its own part.
    """
    if weighting.mixture != "branches":
        return None
    return jax.random.key_data(jax.random.split(jax.random.fold_in(key, 1), window.valid.shape))


def _recur(
    model: BranchingModel,
    window: Window,
    noise: Float[Array, "encoders steps+1 batch latent"],
    *,
    groups: int = 1,
    training: bool = True,
) -> tuple[Float[Array, "branch batch"], Traced, Encoder]:
    """KL(q(z_0) || N(0, I)), what recursions leave behind, and the encoders with their averages moved on."""
    observation, action = model.observation.apply(window.observation), model.action_inputs(window.action)

    def infer(encoder: Encoder, noise: Array) -> tuple[Array, Posterior, Encoder]:
        features, initial = _begun(encoder.initial, observation[0], window.observed[0], groups, training)
        first = encoder.initial_head(features)
        moved = eqx.tree_at(lambda tree: tree.initial, encoder, initial)
        posterior = encoder.infer(observation, action, first=first, noise=noise)
        return first.kl_from_standard().sum(-1), posterior, moved

    # Time comes first, whatever stands before the batch: pieces of it are cut.
    axes: Any = (0, 1, eqx.if_array(0))
    divergence, posterior, encoder = eqx.filter_vmap(infer, out_axes=axes)(model.encoder, noise)
    if model.shared_encoder:
        posterior = jax.tree.map(lambda leaf: leaf[:, 0], posterior)

    hidden = recur(model.decoder, posterior.latent[:-1], action)
    later = jax.tree.map(lambda leaf: leaf[1:], posterior.distribution)
    return (
        jnp.broadcast_to(divergence, (model.branches, *divergence.shape[1:])),
        Traced(posterior.latent, later, posterior.hidden, hidden),
        encoder,
    )


def _begun(
    mlp: MLP,
    observation: Float[Array, "batch obs"],
    observed: Bool[Array, " batch"],
    groups: int,
    training: bool,
) -> tuple[Float[Array, "batch features"], MLP]:
    """First observations through a network, each group normalised by its own averages."""
    if groups == 1:
        return through(mlp, observation, observed, training)

    def one(rows: Array, counts: Array) -> tuple[Array, list[Array]]:
        features, moved = mlp.train(rows, counts)
        return features, running_averages(moved)

    features, averages = jax.vmap(one)(
        *(leaf.reshape(groups, -1, *leaf.shape[1:]) for leaf in (observation, observed))
    )
    moved = with_running_averages(mlp, [average.mean(0) for average in averages])
    return features.reshape(len(observation), -1), moved


def _given(model: BranchingModel, window: Window, luck: UInt32[Array, "steps batch 2"] | None) -> Given:
    return Given(
        observation=model.observation.apply(window.observation),
        observed=window.observed,
        reward=model.reward.apply(window.reward[..., None])[..., 0],
        ended=window.ended,
        valid=window.valid,
        luck=luck,
    )


def _judge(
    weighting: Weighting, shared: tuple[Decoder, Array], traced: Traced, given: Given
) -> tuple[Scalar, tuple[Terms, list[Array]]]:
    terms, moved = score(*shared, traced, given, weighting)
    return terms.total(weighting), (terms, running_averages(moved))
