"""What branches say about a passage: some steps of a window, after the recursions have gone over it."""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from vlbm.backward import repeated
from vlbm.distributions import Normal
from vlbm.models.latent import Decoder, Emission
from vlbm.models.terms import Terms, Weighting, alignment


class Traced(NamedTuple):
    """What the recursions left behind at every step; an encoder for every branch adds its axis after time."""

    latent: Float[Array, "start+steps *encoder batch latent"]  # one more where the passage starts a window
    distribution: Normal  # of the latents but the one that starts a window
    encoded: Float[Array, "steps *encoder batch units"]  # the encoder's hidden states
    hidden: Float[Array, "steps branch batch units"]


class Given(NamedTuple):
    """What was observed, standardised, and what is random about the branches' own latents."""

    observation: Float[Array, "start+steps batch obs"]
    observed: Bool[Array, "start+steps batch"]
    reward: Float[Array, "steps batch"]
    ended: Float[Array, "steps batch"]
    valid: Bool[Array, "steps batch"]
    noise: Float[Array, "steps branch batch latent"] | None


class BranchTerms(NamedTuple):
    """Branches' terms, summed over the valid steps of each window."""

    reconstruction: Float[Array, "branch batch"]
    divergence: Float[Array, "branch batch"]
    alignment: Float[Array, "branch batch"]
    ending: Float[Array, "branch batch"]


def score(
    decoder: Decoder, weight: Float[Array, " branch"], traced: Traced, given: Given, weighting: Weighting
) -> tuple[Terms, Decoder]:
    """Sums over a passage, and the decoders with their running averages moved on."""
    branch, predicted, moved = follow(decoder, traced, given, weighting)
    mixture, ending = jnp.zeros(()), branch.ending.sum()
    if weighting.mixture != "none":
        mixed = predicted.mixed(weight)
        mixture = _data_log_prob(mixed, given).sum()
        if mixed.ending is not None:
            ending = ending + _masked(mixed.ending.log_prob(given.ended), given.valid).sum()
    return Terms(
        mixture=mixture,
        reconstruction=branch.reconstruction.sum(),
        initial_divergence=jnp.zeros(()),  # of the latents before any step
        divergence=branch.divergence.sum(),
        alignment=branch.alignment.sum(),
        ending=ending,
    ), moved


def follow(
    decoder: Decoder, traced: Traced, given: Given, weighting: Weighting, *, training: bool = True
) -> tuple[BranchTerms, Emission, Decoder]:
    """Branches' terms, the emissions to be mixed, and the decoders with their running averages moved on."""
    shared = traced.latent.ndim < traced.hidden.ndim
    branches = traced.hidden.shape[1]

    def compared(leaf: Array) -> Array:
        return repeated(leaf, branches) if shared else jnp.moveaxis(leaf, 1, 0)

    distribution = jax.tree.map(compared, traced.distribution)
    encoded = compared(traced.encoded)
    # Latents of one encoder are multiplied once for all branches; the rest is only compared.
    axis = None if shared else 1

    def one(
        decoder: Decoder,
        latent: Array,
        distribution: Normal,
        encoded: Array,
        hidden: Array,
        noise: Array | None,
    ) -> tuple[BranchTerms, Emission, Decoder]:
        aligned, alignment_mlp = through(decoder.alignment, hidden, given.valid, training)
        transition = decoder.transition(aligned)
        start = len(latent) - len(hidden)
        if noise is None:
            emission, moved = _emit(decoder, latent, given.observed, start, training)
            predicted = emission
        else:
            # The encoder's latents and the branch's own predictions go through the heads together.
            own = jnp.concatenate([latent[:start], transition.sample(noise)])
            both = jnp.concatenate([latent, own], axis=1)
            twice = jnp.concatenate([given.observed, given.observed], axis=1)
            together, moved = _emit(decoder, both, twice, start, training)
            emission, predicted = (
                jax.tree.map(lambda leaf, part=part: jnp.split(leaf, 2, axis=1)[part], together)
                for part in (0, 1)
            )
        moved = eqx.tree_at(lambda tree: tree.alignment, moved, alignment_mlp)
        ending = (
            jnp.zeros(given.valid.shape) if emission.ending is None else emission.ending.log_prob(given.ended)
        )
        terms = BranchTerms(
            reconstruction=_data_log_prob(emission, given),
            divergence=_masked(distribution.kl(transition).sum(-1), given.valid).sum(0),
            alignment=_masked(alignment(encoded - aligned, weighting.alignment), given.valid).sum(0),
            ending=_masked(ending, given.valid).sum(0),
        )
        return terms, predicted, moved

    return eqx.filter_vmap(one, in_axes=(eqx.if_array(0), axis, eqx.if_array(0), 0, 1, 1))(
        decoder, traced.latent, distribution, encoded, traced.hidden, given.noise
    )


def through(mlp, inputs: Array, valid: Bool[Array, "*batch"], training: bool):
    return mlp.train(inputs, valid) if training else (mlp(inputs), mlp)


def _emit(
    decoder: Decoder, latent: Array, observed: Array, start: int, training: bool
) -> tuple[Emission, Decoder]:
    if training:
        return decoder.emit_in_training(latent, observed, start=start)
    emission = decoder.emit(latent)
    later = jax.tree.map(lambda leaf: leaf[start:], (emission.reward, emission.ending))
    return Emission(emission.observation, *later), decoder


def _data_log_prob(emission: Emission, given: Given) -> Array:
    """log p(states, rewards | latents), summed over the real steps of each window."""
    states = _masked(emission.observation.log_prob(given.observation).sum(-1), given.observed).sum(0)
    return states + _masked(emission.reward.log_prob(given.reward), given.valid).sum(0)


def _masked(values: Float[Array, "*shape"], keep: Bool[Array, "*shape"]) -> Float[Array, "*shape"]:
    # `where`, not a product: whatever padding holds, infinities included, it leaves no trace.
    return jnp.where(keep, values, 0.0)
