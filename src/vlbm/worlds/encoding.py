"""Latents of logged steps, for maps and diagnostics."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from vlbm.data.episodes import Episodes
from vlbm.data.sampler import Sampler, Window, WindowStarts
from vlbm.data.view import EpisodeView
from vlbm.worlds.vlbm import BranchingModel, Episode

BATCH = 256


def encode(model: BranchingModel, episodes: Episodes) -> Float[np.ndarray, "steps+episodes latent"]:
    """The mean latent of every observation, row for row as `episodes.observation`.

    Episodes are encoded in windows as long as those of training, since longer ones give unseen recurrent
    states. With an encoder for every branch, their latents are concatenated.
    """
    steps = model.window or int(episodes.length.max())
    sampler = Sampler.of(EpisodeView.of(episodes))
    # Windows share their end points, so the last observation of an episode always closes a window.
    starts = [np.arange(0, length, steps) for length in episodes.length]
    episode = np.repeat(np.arange(episodes.count), [len(part) for part in starts])
    start = np.concatenate(starts)
    columns = model.latents * int(np.prod(model.encoder_shape))
    out = np.empty((len(episodes.observation), columns), np.float32)
    for begin in range(0, len(start), BATCH):
        chosen = np.arange(begin, begin + BATCH) % len(start)  # the last batch wraps: one compiled shape
        windows = WindowStarts(jnp.asarray(episode[chosen]), jnp.asarray(start[chosen]))
        latent = np.asarray(_encode(model, sampler.cut(windows, steps=steps)))
        within = start[chosen][:, None] + np.arange(steps + 1)
        # At the border of two windows, the latent of the earlier one has more context and is kept.
        last = episodes.length[episode[chosen]][:, None]
        real = (within <= last) & ((within > start[chosen][:, None]) | (within == 0))
        row = episodes.first_observation[episode[chosen]][:, None] + within
        out[row[real]] = latent[real]
    return out


@eqx.filter_jit
def _encode(model: BranchingModel, windows: Window) -> Float[Array, "batch steps+1 latent"]:
    def one(window: Window) -> Float[Array, "steps+1 latent"]:
        episode = Episode.of(model, window)
        noise = jnp.zeros((*model.encoder_shape, len(episode.s), model.latents))
        infer = lambda encoder, noise: encoder.infer(noise, episode.s, episode.a)  # noqa: E731
        _, q, _, _ = model.over_encoders(infer, noise)
        return jnp.concatenate(list(q.mean), axis=-1) if model.ensemble else q.mean

    return jax.vmap(one)(windows)
