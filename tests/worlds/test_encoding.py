"""Latents of logged observations, against the encoder run by hand on every window."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from systems import noise_logs, random_world
from vlbm.data.episodes import Episodes
from vlbm.worlds.encoding import BATCH, encode
from vlbm.worlds.vlbm import BranchingModel, Encoder

LENGTHS = (7, 1, 3, 6)
WINDOW = 3


@pytest.fixture(scope="module")
def episodes() -> Episodes:
    return noise_logs(LENGTHS)


@eqx.filter_jit
def begin(encoder: Encoder, state: jax.Array) -> jax.Array:
    return encoder.initial(state)[0].mean


@eqx.filter_jit
def read(encoder: Encoder, latent: jax.Array, memory: tuple, action: jax.Array, state: jax.Array) -> tuple:
    """One step of the encoder at the mean."""
    memory = encoder.lstm(jnp.concatenate([latent, action, state]), memory)
    return encoder.later(memory[0])[0].mean, memory


def read_episode(
    model: BranchingModel, encoder: Encoder, states: np.ndarray, actions: np.ndarray, window: int
) -> np.ndarray:
    """The latent of every observation; the recurrent state is forgotten after every `window` steps."""
    states = np.asarray(model.observation.apply(states))
    actions = np.asarray(model.action.apply(actions))
    latents = [np.asarray(begin(encoder, states[0]))]
    for time, action in enumerate(actions):
        if time % window == 0:
            latent = begin(encoder, states[time])
            memory = (jnp.zeros(5), jnp.zeros(5))
        latent, memory = read(encoder, latent, memory, action, states[time + 1])
        latents.append(np.asarray(latent))
    return np.stack(latents)


def by_hand(model: BranchingModel, episodes: Episodes, encoder: Encoder, window: int) -> np.ndarray:
    parts = []
    for index, length in enumerate(episodes.length):
        row, step = episodes.first_observation[index], episodes.first_step[index]
        states, actions = episodes.observation[row : row + length + 1], episodes.action[step : step + length]
        parts.append(read_episode(model, encoder, states, actions, window))
    return np.concatenate(parts)


@pytest.mark.parametrize("normalisation", ["none", "batch"])
def test_every_observation_has_the_latent_of_a_stretch_read_by_hand(episodes, normalisation):
    model = random_world(episodes, window=WINDOW, normalisation=normalisation)
    latents = encode(model, episodes)
    assert latents.shape == (len(episodes.observation), 3)
    expected = by_hand(model, episodes, model.encoder, WINDOW)
    np.testing.assert_allclose(latents, expected, rtol=1e-3, atol=1e-4)


def test_whole_episodes_are_read_in_one_stretch(episodes):
    model = random_world(episodes, window=None)
    expected = by_hand(model, episodes, model.encoder, max(LENGTHS))
    np.testing.assert_allclose(encode(model, episodes), expected, rtol=1e-3, atol=1e-4)


def test_latents_of_separate_encoders_stand_side_by_side(episodes):
    model = random_world(episodes, window=WINDOW, ensemble=True)
    latents = encode(model, episodes)
    assert latents.shape == (len(episodes.observation), 9)
    for index in range(3):
        encoder = jax.tree.map(lambda leaf, index=index: leaf[index], model.encoder)
        expected = by_hand(model, episodes, encoder, WINDOW)
        np.testing.assert_allclose(latents[:, 3 * index : 3 * index + 3], expected, rtol=1e-3, atol=1e-4)


def test_the_latents_of_an_episode_do_not_depend_on_the_others_beside_it(episodes):
    """More windows than go into one batch: wherever a batch ends, an episode reads the same."""
    model = random_world(episodes, window=WINDOW)
    long = noise_logs((1, 5, WINDOW * (BATCH + 44) + 1), seed=1)
    together = encode(model, long)
    assert together.shape[0] == long.steps + 3
    for index in range(3):
        alone = encode(model, long.select([index]))
        row = long.first_observation[index]
        np.testing.assert_allclose(together[row : row + len(alone)], alone, rtol=1e-5, atol=1e-6)


def test_discrete_actions_are_encoded():
    discrete = noise_logs((4, 2), n_actions=3)
    model = random_world(discrete, window=WINDOW)
    latents = encode(model, discrete)
    other = noise_logs((4, 2), n_actions=3)
    other.action[0] = (other.action[0] + 1) % 3
    changed = np.abs(encode(model, other) - latents).max(axis=1) > 1e-6
    # The first action shows in what follows it within its window, and nowhere else.
    np.testing.assert_array_equal(changed, [False, True, True, True, False, False, False, False])
