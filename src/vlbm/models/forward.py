"""A window through the branching model: the recursions at once, what follows them in pieces of time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from vlbm.models.branching import BranchingModel
from vlbm.models.latent import Decoder, Emission, Encoder, Posterior
from vlbm.models.terms import BranchTerms, MixtureTerms, Weighting, alignment
from vlbm.networks import repeated
from vlbm.windows import Window

# Heads and their gradients go through longer windows in pieces of at most so many steps: what a piece needs
# stays near the processor, and whole episodes do not need gigabytes. Batch statistics are those of a piece.
PIECE = 64


class Passed(NamedTuple):
    """What a pass leaves behind."""

    branch: BranchTerms  # [branch, batch]
    mixture: MixtureTerms | None
    initial_divergence: Float[Array, "branch batch"]
    model: BranchingModel  # with its running averages moved on


class Stretch(NamedTuple):
    """What is known of some steps before any head is asked; time is the first axis where nothing is said."""

    posterior: Posterior  # [branch, ...] but for latents of a shared encoder
    hidden: Float[Array, "branch steps batch units"]  # of the branches
    noise: Float[Array, "branch steps batch latent"] | None
    observation: Float[Array, "steps+1 batch obs"]  # standardised
    reward: Float[Array, "steps batch"]
    ended: Float[Array, "steps batch"]
    observed: Bool[Array, "steps+1 batch"]
    valid: Bool[Array, "steps batch"]


def pieces(steps: int) -> tuple[int, int]:
    """How many pieces a window has, and of how many steps each; together they may be a few more."""
    count = -(-steps // PIECE)
    return count, -(-steps // count)


def padded(window: Window) -> Window:
    """The window with as many invalid steps more as its pieces have."""
    steps = len(window.reward)
    count, size = pieces(steps)
    if count * size == steps:
        return window
    extra = count * size - steps
    return jax.tree.map(lambda leaf: jnp.pad(leaf, [(0, extra), *[(0, 0)] * (leaf.ndim - 1)]), window)


def forward(
    model: BranchingModel,
    window: Window,
    weighting: Weighting,
    *,
    noise: Float[Array, "encoders+branches steps+1 batch latent"],
    training: bool = True,
) -> Passed:
    """Everything that the objective is made of, for a window that was `padded`."""
    observation = model.observation.apply(window.observation)
    action = model.action_inputs(window.action)
    observed = window.observed

    def infer(encoder: Encoder, noise: Array) -> tuple[Posterior, Encoder]:
        features, initial = _through(encoder.initial, observation[0], observed[0], training)
        first = encoder.initial_head(features)
        moved = eqx.tree_at(lambda tree: tree.initial, encoder, initial)
        return encoder.infer(observation, action, first=first, noise=noise), moved

    posterior, encoder = eqx.filter_vmap(infer)(model.encoder, noise[: model.encoders])
    latent_axis: Any = eqx.if_array(0)
    if model.shared_encoder:
        posterior, latent_axis = jax.tree.map(lambda leaf: leaf[0], posterior), None
        # Latents are multiplied once for all branches; the rest is only compared with what branches say.
        posterior = posterior._replace(
            hidden=repeated(posterior.hidden, model.branches),
            distribution=jax.tree.map(lambda leaf: repeated(leaf, model.branches), posterior.distribution),
        )
    recur = eqx.filter_vmap(
        lambda decoder, latent: decoder.recur(latent[:-1], action), in_axes=(eqx.if_array(0), latent_axis)
    )
    whole = Stretch(
        posterior=posterior,
        hidden=recur(model.decoder, posterior.latent),
        noise=noise[model.encoders :, 1:] if weighting.mixture == "branches" else None,
        observation=observation,
        reward=model.reward.apply(window.reward[..., None])[..., 0],
        ended=window.ended,
        observed=observed,
        valid=window.valid,
    )
    first = jax.tree.map(lambda leaf: leaf[:, 0], posterior.distribution)

    def decode(decoder: Decoder, stretch: Stretch) -> tuple[BranchTerms, MixtureTerms | None, Decoder]:
        return _decoded(
            replace(model, decoder=decoder), stretch, weighting, latent_axis=latent_axis, training=training
        )

    count, size = pieces(len(window.reward))
    if count == 1:
        branch, mixture, decoder = decode(model.decoder, whole)
    else:
        branch, mixture, decoder = _piece_by_piece(decode, model.decoder, whole, count, size)
    moved = replace(model, encoder=encoder, decoder=decoder)
    return Passed(branch, mixture, first.kl_from_standard().sum(-1), moved)


def _piece_by_piece(decode: Any, decoder: Decoder, whole: Stretch, count: int, size: int) -> Any:
    """The same sums, one piece after the other; what a piece needs for its gradient is computed again."""
    arrays, static = eqx.partition(decoder, eqx.is_array)

    @jax.checkpoint
    def advance(arrays: Any, stretch: Stretch) -> tuple[Any, Any]:
        branch, mixture, moved = decode(eqx.combine(arrays, static), stretch)
        return eqx.filter(moved, eqx.is_array), (branch, mixture)

    arrays, summed = jax.lax.scan(advance, arrays, _cut(whole, count, size))
    return *jax.tree.map(lambda term: term.sum(0), summed), eqx.combine(arrays, static)


def _cut(whole: Stretch, count: int, size: int) -> Stretch:
    """The pieces, stacked."""

    def apart(leaf: Array, axis: int) -> Array:
        parts = leaf.reshape(*leaf.shape[:axis], count, size, *leaf.shape[axis + 1 :])
        return jnp.moveaxis(parts, axis, 0)

    def overlapping(leaf: Array, axis: int) -> Array:
        """Where each piece has one more: the last of the piece before it."""
        later = jax.lax.slice_in_dim(leaf, 1, None, axis=axis)
        before = jax.lax.slice_in_dim(leaf, 0, -1, stride=size, axis=axis)
        return jnp.concatenate(
            [jnp.expand_dims(jnp.moveaxis(before, axis, 0), axis + 1), apart(later, axis)], axis=axis + 1
        )

    latent, distribution, hidden = whole.posterior
    # Only the first piece shows the observation it begins with: to others it belongs already.
    observed = overlapping(whole.observed, 0)
    observed = observed.at[1:, 0].set(False)
    return Stretch(
        posterior=Posterior(
            overlapping(latent, latent.ndim - 3),
            jax.tree.map(lambda leaf: overlapping(leaf, 1), distribution),
            apart(hidden, 1),
        ),
        hidden=apart(whole.hidden, 1),
        noise=None if whole.noise is None else apart(whole.noise, 1),
        observation=overlapping(whole.observation, 0),
        reward=apart(whole.reward, 0),
        ended=apart(whole.ended, 0),
        observed=observed,
        valid=apart(whole.valid, 0),
    )


def _decoded(
    model: BranchingModel, stretch: Stretch, weighting: Weighting, *, latent_axis: Any, training: bool
) -> tuple[BranchTerms, MixtureTerms | None, Decoder]:
    """What the branches make of a stretch."""
    valid, observed, ended = stretch.valid, stretch.observed, stretch.ended

    def decode(decoder: Decoder, posterior: Posterior, hidden: Array, noise: Array | None):
        aligned, alignment_mlp = _through(decoder.alignment, hidden, valid, training)
        transition = decoder.transition(aligned)
        if noise is None:
            emission, moved = _emit(decoder, posterior.latent, observed, training)
            predicted = emission
        else:
            # The encoder's latents and the branch's own predictions go through the heads together.
            own = jnp.concatenate([posterior.latent[:1], transition.sample(noise)])
            both = jnp.concatenate([posterior.latent, own], axis=1)
            emission, moved = _emit(decoder, both, jnp.concatenate([observed, observed], axis=1), training)
            emission, predicted = (
                jax.tree.map(lambda leaf, part=part: jnp.split(leaf, 2, axis=1)[part], emission)
                for part in (0, 1)
            )
        later = jax.tree.map(lambda leaf: leaf[1:], posterior.distribution)
        terms = BranchTerms(
            reconstruction=_data_log_prob(emission, stretch),
            divergence=_masked(later.kl(transition).sum(-1), valid).sum(0),
            alignment=_masked(alignment(aligned - posterior.hidden, weighting.alignment), valid).sum(0),
            ending=_ending_log_prob(emission, ended, valid),
        )
        return terms, predicted, eqx.tree_at(lambda tree: tree.alignment, moved, alignment_mlp)

    each = eqx.if_array(0)
    axes = (each, Posterior(latent_axis, each, each), each, each)  # type: ignore[arg-type]
    branch, predicted, moved = eqx.filter_vmap(decode, in_axes=axes)(
        model.decoder, stretch.posterior, stretch.hidden, stretch.noise
    )
    if weighting.mixture == "none":
        return branch, None, moved
    mixed = predicted.mixed(model.weight)
    return branch, MixtureTerms(_data_log_prob(mixed, stretch), _ending_log_prob(mixed, ended, valid)), moved


def _through(mlp, inputs: Array, valid: Bool[Array, "*batch"], training: bool):
    return mlp.train(inputs, valid) if training else (mlp(inputs), mlp)


def _emit(decoder: Decoder, latent: Array, valid: Array, training: bool) -> tuple[Emission, Decoder]:
    if training:
        return decoder.emit_in_training(latent, valid)
    emission = decoder.emit(latent)
    later = jax.tree.map(lambda leaf: leaf[1:], (emission.reward, emission.ending))
    return Emission(emission.observation, *later), decoder


def _data_log_prob(emission: Emission, stretch: Stretch) -> Float[Array, " batch"]:
    """log p(states, rewards | latents), summed over the real steps of each window."""
    states = emission.observation.log_prob(stretch.observation).sum(-1)
    rewards = emission.reward.log_prob(stretch.reward)
    return _masked(states, stretch.observed).sum(0) + _masked(rewards, stretch.valid).sum(0)


def _ending_log_prob(emission: Emission, ended: Array, valid: Array) -> Float[Array, " batch"]:
    if emission.ending is None:
        return jnp.zeros(valid.shape[1])
    return _masked(emission.ending.log_prob(ended), valid).sum(0)


def _masked(values: Float[Array, "*shape"], keep: Bool[Array, "*shape"]) -> Float[Array, "*shape"]:
    # `where`, not a product: whatever padding holds, infinities included, it leaves no trace.
    return jnp.where(keep, values, 0.0)
