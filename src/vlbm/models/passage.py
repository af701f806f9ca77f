"""What branches say about a passage: some steps of a window, after the recursions have gone over it."""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray, UInt32

from vlbm.backward import repeated, total
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
    """What was observed, standardised, and the luck of the branches' own latents."""

    observation: Float[Array, "start+steps batch obs"]
    observed: Bool[Array, "start+steps batch"]
    reward: Float[Array, "steps batch"]
    ended: Float[Array, "steps batch"]
    valid: Bool[Array, "steps batch"]
    luck: UInt32[Array, "steps batch 2"] | None  # a key for every step


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
        mixed, rows = predicted.mixed(weight), _Rows.of(given)
        mixture = rows.log_prob(mixed).sum()
        if mixed.ending is not None:
            ending = ending + rows.summed(mixed.ending.log_prob(rows.ended)).sum()
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
    """Branches' terms, the emissions to be mixed, and the decoders with their running averages moved on.

    Within, all steps of all windows are the rows of one batch: the compiler then has no shapes to change
    between one operation and the next, which costs more than many of them.
    """
    rows = _Rows.of(given)
    shared = traced.latent.ndim < traced.hidden.ndim
    hidden = _stacked_rows(traced.hidden)
    # Latents of one encoder are multiplied once for all branches; the rest is only compared.
    latent, distribution, encoded = jax.tree.map(
        _rows if shared else _stacked_rows, (traced.latent, traced.distribution, traced.encoded)
    )
    if shared:
        distribution, encoded = jax.tree.map(
            lambda leaf: repeated(leaf, len(hidden)), (distribution, encoded)
        )
    noise = None
    if given.luck is not None:
        noise = _stacked_rows(_noise(given.luck, len(hidden), latent.shape[-1]))

    def one(
        decoder: Decoder,
        latent: Array,
        distribution: Normal,
        encoded: Array,
        hidden: Array,
        noise: Array | None,
    ) -> tuple[BranchTerms, Emission, Decoder]:
        aligned, alignment_mlp = through(decoder.alignment, hidden, rows.valid, training)
        transition = decoder.transition(aligned)
        start = len(latent) - len(hidden)
        if noise is None:
            emission, moved = _emit(decoder, latent, rows.observed, start, training)
            predicted = emission
        else:
            # The encoder's latents and the branch's own predictions go through the heads together.
            own = jnp.concatenate([latent[:start], transition.sample(noise)])
            together, moved = _emit(
                decoder,
                _interleaved(latent, own, start),
                _interleaved(rows.observed, rows.observed, start),
                2 * start,
                training,
            )
            emission, predicted = (_half(together, part, len(latent), len(hidden)) for part in (0, 1))
        moved = eqx.tree_at(lambda tree: tree.alignment, moved, alignment_mlp)
        ending = None if emission.ending is None else emission.ending.log_prob(rows.ended)
        terms = BranchTerms(
            reconstruction=rows.log_prob(emission),
            divergence=rows.summed(total(distribution.kl(transition))),
            alignment=rows.summed(alignment(encoded - aligned, weighting.alignment)),
            ending=jnp.zeros(rows.windows) if ending is None else rows.summed(ending),
        )
        return terms, predicted, moved

    axis = None if shared else 0
    return eqx.filter_vmap(one, in_axes=(eqx.if_array(0), axis, eqx.if_array(0), 0, 0, 0))(
        decoder, latent, distribution, encoded, hidden, noise
    )


def _noise(
    luck: UInt32[Array, "steps batch 2"], branches: int, latents: int
) -> Float[Array, "steps branch batch latent"]:
    def draw(key: PRNGKeyArray) -> Float[Array, "branch latent"]:
        return jax.random.normal(key, (branches, latents))

    return jax.vmap(jax.vmap(draw, out_axes=1))(jax.random.wrap_key_data(luck))


def through(mlp, inputs: Array, valid: Bool[Array, "*batch"], training: bool):
    return mlp.train(inputs, valid) if training else (mlp(inputs), mlp)


class _Rows(NamedTuple):
    """What was observed at all steps of all windows, one after the other."""

    observation: Float[Array, "start+rows obs"]
    observed: Bool[Array, " start+rows"]
    reward: Float[Array, " rows"]
    ended: Float[Array, " rows"]
    valid: Bool[Array, " rows"]
    windows: int

    @classmethod
    def of(cls, given: Given) -> _Rows:
        parts = (given.observation, given.observed, given.reward, given.ended, given.valid)
        observation, observed, reward, ended, valid = map(_rows, parts)
        return cls(observation, observed, reward, ended, valid, given.valid.shape[1])

    def summed(
        self, values: Float[Array, " rows"], keep: Bool[Array, " rows"] | None = None
    ) -> Float[Array, " windows"]:
        """Over the steps of each window that are real."""
        # `where`, not a product: whatever padding holds, infinities included, it leaves no trace.
        kept = jnp.where(self.valid if keep is None else keep, values, 0.0)
        return kept.reshape(-1, self.windows).sum(0)

    def log_prob(self, emission: Emission) -> Float[Array, " windows"]:
        """log p(states, rewards | latents)."""
        states = total(emission.observation.log_prob(self.observation))
        return self.summed(states, self.observed) + self.summed(emission.reward.log_prob(self.reward))


def _emit(
    decoder: Decoder, latent: Array, observed: Array, start: int, training: bool
) -> tuple[Emission, Decoder]:
    if training:
        return decoder.emit_in_training(latent, observed, start=start)
    emission = decoder.emit(latent)
    later = jax.tree.map(lambda leaf: leaf[start:], (emission.reward, emission.ending))
    return Emission(emission.observation, *later), decoder


def _rows(leaf: Float[Array, "steps batch *size"]) -> Float[Array, "rows *size"]:
    return leaf.reshape(-1, *leaf.shape[2:])


def _stacked_rows(leaf: Float[Array, "steps branch batch *size"]) -> Float[Array, "branch rows *size"]:
    first = jnp.moveaxis(leaf, 1, 0)
    return first.reshape(len(first), -1, *leaf.shape[3:])


def _interleaved(one: Array, other: Array, start: int) -> Array:
    """Both, with what there is of either before the first step before all the rest."""
    return jnp.concatenate([one[:start], other[:start], one[start:], other[start:]])


def _half(together: Emission, part: int, rows: int, later: int) -> Emission:
    """What was emitted for one of two that were interleaved."""
    start = rows - later

    def taken(leaf: Array) -> Array:
        first, rest = leaf[: len(leaf) - 2 * later], leaf[len(leaf) - 2 * later :]
        own = rest[part * later : (part + 1) * later]
        return jnp.concatenate([first[part * start : (part + 1) * start], own]) if len(first) else own

    return jax.tree.map(taken, together)
