"""Latents of logged steps, for maps and diagnostics."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from vlbm.episodes import Episodes
from vlbm.models.branching import BranchingModel
from vlbm.models.latent import Encoder
from vlbm.windows import Window, WindowSource

BATCH = 256


def encode(model: BranchingModel, episodes: Episodes) -> Float[np.ndarray, "steps+episodes latent"]:
    """The mean latent of every observation, row for row as `episodes.observation`.

    Episodes are read in stretches as long as the model was trained on: beyond that its recurrent
    state was never seen. With an encoder for every branch, their latents stand side by side.
    """
    steps = model.window or int(episodes.length.max())
    source = WindowSource.of(episodes)
    # Windows share their end points, so the last observation of an episode always closes a window.
    starts = [np.arange(0, length, steps) for length in episodes.length]
    episode = np.repeat(np.arange(episodes.count), [len(part) for part in starts])
    start = np.concatenate(starts)
    out = np.empty((len(episodes.observation), model.latents * model.encoders), np.float32)
    for begin in range(0, len(start), BATCH):
        chosen = np.arange(begin, begin + BATCH) % len(start)  # the last batch wraps: one compiled shape
        window = source.cut(jnp.asarray(episode[chosen]), jnp.asarray(start[chosen]), steps=steps)
        latent = np.asarray(_encode(model, window))
        within = start[chosen] + np.arange(steps + 1)[:, None]
        # Where two windows meet, the one that ends there knows more, and it alone writes.
        real = (within <= episodes.length[episode[chosen]]) & ((within > start[chosen]) | (within == 0))
        row = episodes.first_observation[episode[chosen]] + within
        out[row[real]] = latent[real]
    return out


@eqx.filter_jit
def _encode(model: BranchingModel, window: Window) -> Float[Array, "steps+1 batch latent"]:
    observation = model.observation.apply(window.observation)
    action = model.action_inputs(window.action)
    noise = jnp.zeros((*window.observed.shape, model.latents))

    def infer(encoder: Encoder) -> Array:
        first = encoder.begin(observation[0])
        return encoder.infer(observation, action, first=first, noise=noise).distribution.mean

    latents = eqx.filter_vmap(infer)(model.encoder)
    return jnp.concatenate(list(jax.tree.leaves(latents)[0]), axis=-1)
