"""What the branching model is trained to maximise, and the bound on the likelihood within it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from vlbm.devices import share
from vlbm.models.branching import BranchingModel
from vlbm.models.forward import forward, padded
from vlbm.models.terms import Terms, Weighting
from vlbm.windows import Window


def objective(
    model: BranchingModel, window: Window, weighting: Weighting, *, key: PRNGKeyArray
) -> tuple[Terms, BranchingModel]:
    """The terms on a batch of windows, and the model with its running averages moved on."""
    window = padded(window)
    # Drawn for the whole batch, whatever part of it is this device's.
    noise = share(_noise(model, window, weighting, key=key), axis=2)
    steps = jnp.maximum(window.valid.sum(), 1)
    passed = forward(model, share(window, axis=1), weighting, noise=noise)

    def average(sums: Array) -> Array:
        return sums.sum() / steps

    branch = jax.tree.map(average, passed.branch)
    mixture = None if passed.mixture is None else jax.tree.map(average, passed.mixture)
    return Terms(
        mixture=jnp.zeros(()) if mixture is None else mixture.data,
        reconstruction=branch.reconstruction,
        initial_divergence=average(passed.initial_divergence),
        divergence=branch.divergence,
        alignment=branch.alignment,
        ending=branch.ending if mixture is None else branch.ending + mixture.ending,
    ), passed.model


def evidence_lower_bound(
    model: BranchingModel, window: Window, *, key: PRNGKeyArray
) -> Float[Array, "branch batch"]:
    """Each branch's bound on log p(states, rewards | actions) of each window, in raw units.

    One sample of the latents; the expectation over `key` is the bound.
    """
    window = padded(window)
    weighting = Weighting(mixture="none", alignment="none")
    noise = _noise(model, window, weighting, key=key)
    passed = forward(model, window, weighting, noise=noise, training=False)
    # The density of raw numbers is that of standardised ones divided by the scale.
    per_observation = jnp.log(model.observation.scale).sum()
    per_reward = jnp.log(model.reward.scale).sum()
    stretch = window.observed.sum(0) * per_observation + window.valid.sum(0) * per_reward
    branch = passed.branch
    return branch.reconstruction - passed.initial_divergence - branch.divergence - stretch


def _noise(
    model: BranchingModel, window: Window, weighting: Weighting, *, key: PRNGKeyArray
) -> Float[Array, "encoders+branches steps+1 batch latent"]:
    """What is random about the encoders' latents, and the branches' own if they predict any."""
    predicting = model.branches if weighting.mixture == "branches" else 0
    shape = (model.encoders + predicting, *window.observed.shape, model.latents)
    # One draw for all: every separate draw adds seconds of compilation. The barrier keeps the compiler
    # from inlining the generator into every use of its numbers.
    return jax.lax.optimization_barrier(jax.random.normal(key, shape))
