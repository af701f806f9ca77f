"""What the branching model is trained to maximise, term by term."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray, Scalar

from vlbm.backward import repeated
from vlbm.devices import share
from vlbm.models.branching import BranchingModel
from vlbm.models.latent import Decoder, Emission, Encoder, Posterior
from vlbm.windows import Window

AlignmentKind = Literal["pairwise", "mse", "none"]
MixtureKind = Literal["branches", "encoder", "none"]


@dataclass(frozen=True)
class Weighting:
    """How much each term counts."""

    alignment: AlignmentKind = "pairwise"
    alignment_weight: float = 1.0  # C1
    bound_weight: float = 1.0  # C2
    divergence_weight: float = 1.0  # of KL(q(z_t) || p(z_t)) within the bound; 1 is the bound itself
    initial_divergence_weight: float = 1.0  # of KL(q(z_0) || N(0, I)) within the bound
    # The latents that the mixture's likelihood is taken at: the branches' own one-step predictions,
    # as the paper writes it, or the encoder's. "none" trains the branches by their bounds alone.
    mixture: MixtureKind = "branches"


class Terms(NamedTuple):
    """Averages over the valid steps of a batch; sums over branches where there are several."""

    mixture: Scalar  # log-likelihood of states and rewards under the mixture
    reconstruction: Scalar
    initial_divergence: Scalar
    divergence: Scalar
    alignment: Scalar
    ending: Scalar  # log-likelihood of endings, single branches and mixture

    def total(self, weighting: Weighting) -> Scalar:
        """To be maximised."""
        bound = (
            self.reconstruction
            - weighting.initial_divergence_weight * self.initial_divergence
            - weighting.divergence_weight * self.divergence
        )
        return (
            self.mixture
            - weighting.alignment_weight * self.alignment
            + weighting.bound_weight * bound
            + self.ending
        )


class BranchTerms(NamedTuple):
    """One branch's terms, summed over the valid steps of each window."""

    reconstruction: Float[Array, " batch"]
    initial_divergence: Float[Array, " batch"]
    divergence: Float[Array, " batch"]
    alignment: Float[Array, " batch"]
    ending: Float[Array, " batch"]


def alignment(difference: Float[Array, "*batch units"], kind: AlignmentKind) -> Float[Array, "*batch"]:
    """How far two recurrent states differ, given their difference delta.

    Pairwise: the mean over pairs j < k of (delta_j - delta_k)^2, which a shift of all units leaves
    alone. It takes O(M), not O(M^2), because sum_{j<k} (d_j - d_k)^2 = M sum d^2 - (sum d)^2; the
    same number is the variance of delta times 2 M / (M - 1), a form that does not cancel.
    """
    if kind == "none":
        return jnp.zeros(difference.shape[:-1])
    if kind == "mse":
        return (difference**2).mean(-1)
    units = difference.shape[-1]
    return difference.var(-1) * (2.0 * units / (units - 1))


def objective(
    model: BranchingModel, window: Window, weighting: Weighting, *, key: PRNGKeyArray
) -> tuple[Terms, BranchingModel]:
    """The terms on a batch of windows, and the model with its running averages moved on."""
    # Drawn for the whole batch, whatever part of it is this device's.
    noise = share(_noise(model, window, weighting, key=key), axis=2)
    steps = jnp.maximum(window.valid.sum(), 1)
    window = share(window, axis=1)
    branch, mixed, moved = _forward(model, window, weighting, noise=noise)
    observation, reward, ended = _targets(model, window)
    mixture = jnp.zeros(())
    ending = branch.ending.sum() / steps
    if mixed is not None:
        mixture = _data_log_prob(mixed, observation, reward, window).sum() / steps
        if mixed.ending is not None:
            ending = ending + _masked(mixed.ending.log_prob(ended), window.valid).sum() / steps
    summed = jax.tree.map(lambda term: term.sum() / steps, branch)
    return Terms(
        mixture=mixture,
        reconstruction=summed.reconstruction,
        initial_divergence=summed.initial_divergence,
        divergence=summed.divergence,
        alignment=summed.alignment,
        ending=ending,
    ), moved


def evidence_lower_bound(
    model: BranchingModel, window: Window, *, key: PRNGKeyArray
) -> Float[Array, "branch batch"]:
    """Each branch's bound on log p(states, rewards | actions) of each window, in raw units.

    One sample of the latents; the expectation over `key` is the bound.
    """
    weighting = Weighting(mixture="none", alignment="none")
    noise = _noise(model, window, weighting, key=key)
    branch, _, _ = _forward(model, window, weighting, noise=noise, training=False)
    # The density of raw numbers is that of standardised ones divided by the scale.
    per_observation = jnp.log(model.observation.scale).sum()
    per_reward = jnp.log(model.reward.scale).sum()
    stretch = window.observed.sum(0) * per_observation + window.valid.sum(0) * per_reward
    return branch.reconstruction - branch.initial_divergence - branch.divergence - stretch


def _noise(
    model: BranchingModel, window: Window, weighting: Weighting, *, key: PRNGKeyArray
) -> Float[Array, "encoders+branches steps+1 batch latent"]:
    """What is random about the encoders' latents, and the branches' own if they predict any."""
    predicting = model.branches if weighting.mixture == "branches" else 0
    shape = (model.encoders + predicting, *window.observed.shape, model.latents)
    # One draw for all: every separate draw adds seconds of compilation. The barrier keeps the compiler
    # from inlining the generator into every use of its numbers.
    return jax.lax.optimization_barrier(jax.random.normal(key, shape))


def _forward(
    model: BranchingModel,
    window: Window,
    weighting: Weighting,
    *,
    noise: Float[Array, "encoders+branches steps+1 batch latent"],
    training: bool = True,
) -> tuple[BranchTerms, Emission | None, BranchingModel]:
    """Branches' terms [branch, batch], the mixture of their emissions, and the moved model."""
    observation, reward, ended = _targets(model, window)
    action = model.action_inputs(window.action)
    observed, valid = window.observed, window.valid
    posterior_noise = noise[: model.encoders]
    branch_noise = noise[model.encoders :, 1:] if weighting.mixture == "branches" else None

    def infer(encoder: Encoder, noise: Array) -> tuple[Posterior, Encoder]:
        features, initial = _through(encoder.initial, observation[0], observed[0], training)
        first = encoder.initial_head(features)
        moved = eqx.tree_at(lambda tree: tree.initial, encoder, initial)
        return encoder.infer(observation, action, first=first, noise=noise), moved

    posterior, moved_encoder = eqx.filter_vmap(infer)(model.encoder, posterior_noise)
    axes: Any = Posterior(*(eqx.if_array(0),) * 3)  # type: ignore[arg-type]
    if model.shared_encoder:
        posterior = jax.tree.map(lambda leaf: leaf[0], posterior)
        # Latents are multiplied once for all branches; the rest is only compared with what branches say.
        posterior = posterior._replace(
            hidden=repeated(posterior.hidden, model.branches),
            distribution=jax.tree.map(lambda leaf: repeated(leaf, model.branches), posterior.distribution),
        )
        axes = axes._replace(latent=None)

    def decode(decoder: Decoder, posterior: Posterior, noise: Array | None):
        hidden = decoder.recur(posterior.latent[:-1], action)
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
        moved = eqx.tree_at(lambda tree: tree.alignment, moved, alignment_mlp)
        later = jax.tree.map(lambda leaf: leaf[1:], posterior.distribution)
        first = jax.tree.map(lambda leaf: leaf[0], posterior.distribution)
        ending = (
            jnp.zeros_like(valid, jnp.float32) if emission.ending is None else emission.ending.log_prob(ended)
        )
        terms = BranchTerms(
            reconstruction=_data_log_prob(emission, observation, reward, window),
            initial_divergence=first.kl_from_standard().sum(-1),
            divergence=_masked(later.kl(transition).sum(-1), valid).sum(0),
            alignment=_masked(alignment(aligned - posterior.hidden, weighting.alignment), valid).sum(0),
            ending=_masked(ending, valid).sum(0),
        )
        return terms, predicted, moved

    terms, predicted, moved_decoder = eqx.filter_vmap(
        decode, in_axes=(eqx.if_array(0), axes, eqx.if_array(0))
    )(model.decoder, posterior, branch_noise)
    mixed = None if weighting.mixture == "none" else predicted.mixed(model.weight)
    return terms, mixed, replace(model, encoder=moved_encoder, decoder=moved_decoder)


def _through(mlp, inputs: Array, valid: Bool[Array, "*batch"], training: bool):
    return mlp.train(inputs, valid) if training else (mlp(inputs), mlp)


def _emit(decoder: Decoder, latent: Array, valid: Array, training: bool) -> tuple[Emission, Decoder]:
    if training:
        return decoder.emit_in_training(latent, valid)
    emission = decoder.emit(latent)
    later = jax.tree.map(lambda leaf: leaf[1:], (emission.reward, emission.ending))
    return Emission(emission.observation, *later), decoder


def _targets(model: BranchingModel, window: Window) -> tuple[Array, Array, Array]:
    observation = model.observation.apply(window.observation)
    reward = model.reward.apply(window.reward[..., None])[..., 0]
    return observation, reward, window.ended


def _data_log_prob(emission: Emission, observation: Array, reward: Array, window: Window) -> Array:
    """log p(states, rewards | latents), summed over the real steps of each window."""
    states = _masked(emission.observation.log_prob(observation).sum(-1), window.observed).sum(0)
    return states + _masked(emission.reward.log_prob(reward), window.valid).sum(0)


def _masked(values: Float[Array, "*shape"], keep: Bool[Array, "*shape"]) -> Float[Array, "*shape"]:
    # `where`, not a product: whatever padding holds, infinities included, it leaves no trace.
    return jnp.where(keep, values, 0.0)
