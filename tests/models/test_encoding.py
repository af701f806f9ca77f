"""Latents of logged observations, against the encoder run by hand on every stretch."""

from __future__ import annotations

import equinox as eqx
import jax
import numpy as np
import pytest

from systems import noise_logs, random_world
from vlbm.episodes import Episodes
from vlbm.models.branching import BranchingModel
from vlbm.models.encoding import BATCH, encode
from vlbm.models.latent import Encoder

LENGTHS = (7, 1, 3, 6)
WINDOW = 3


@pytest.fixture(scope="module")
def episodes() -> Episodes:
    return noise_logs(LENGTHS)


@eqx.filter_jit
def read(encoder: Encoder, latent: jax.Array, state: tuple, inputs: jax.Array) -> tuple:
    """One step of the encoder at the mean."""
    state = encoder.lstm.step(state, latent, inputs)
    return encoder.head(jax.nn.relu(encoder.dense(state.hidden))).mean, state


def read_episode(
    model: BranchingModel, encoder: Encoder, states: np.ndarray, actions: np.ndarray, window: int
) -> np.ndarray:
    """The latent of every observation; the recurrent state is forgotten after every `window` steps."""
    states = np.asarray(model.observation.apply(states))
    actions = np.asarray(model.action.apply(actions))
    begin = eqx.filter_jit(lambda encoder, state: encoder.begin(state).mean)
    latents = [np.asarray(begin(encoder, states[0]))]
    for time, action in enumerate(actions):
        if time % window == 0:
            latent, state = begin(encoder, states[time]), encoder.lstm.zero(())
        latent, state = read(encoder, latent, state, np.concatenate([action, states[time + 1]]))
        latents.append(np.asarray(latent))
    return np.stack(latents)


def by_hand(model: BranchingModel, episodes: Episodes, encoder: int, window: int) -> np.ndarray:
    chosen = jax.tree.map(lambda leaf: leaf[encoder], model.encoder)
    parts = []
    for index, length in enumerate(episodes.length):
        row, step = episodes.first_observation[index], episodes.first_step[index]
        states, actions = episodes.observation[row : row + length + 1], episodes.action[step : step + length]
        parts.append(read_episode(model, chosen, states, actions, window))
    return np.concatenate(parts)


def test_every_observation_has_the_latent_of_a_stretch_read_by_hand(episodes):
    model = random_world(episodes, window=WINDOW)
    latents = encode(model, episodes)
    assert latents.shape == (len(episodes.observation), 3)
    np.testing.assert_allclose(latents, by_hand(model, episodes, 0, WINDOW), rtol=1e-4, atol=1e-5)


def test_whole_episodes_are_read_in_one_stretch(episodes):
    model = random_world(episodes, window=None)
    np.testing.assert_allclose(
        encode(model, episodes), by_hand(model, episodes, 0, max(LENGTHS)), rtol=1e-4, atol=1e-5
    )


def test_latents_of_separate_encoders_stand_side_by_side(episodes):
    model = random_world(episodes, window=WINDOW, shared_encoder=False)
    latents = encode(model, episodes)
    assert latents.shape == (len(episodes.observation), 9)
    for index in range(3):
        expected = by_hand(model, episodes, index, WINDOW)
        np.testing.assert_allclose(latents[:, 3 * index : 3 * index + 3], expected, rtol=1e-4, atol=1e-5)


def test_the_latents_of_an_episode_do_not_depend_on_the_others_beside_it(episodes):
    """More stretches than go into one batch: wherever a batch ends, an episode reads the same."""
    model = random_world(episodes, window=WINDOW)
    long = noise_logs((1, 5, WINDOW * (BATCH + 44) + 1), seed=1)
    together = encode(model, long)
    assert together.shape[0] == long.steps + 3
    for index in range(3):
        alone = encode(model, long.select([index]))
        row = long.first_observation[index]
        np.testing.assert_allclose(together[row : row + len(alone)], alone, rtol=1e-5, atol=1e-6)


def test_a_model_offers_the_same_as_a_method(episodes):
    model = random_world(episodes, window=WINDOW)
    np.testing.assert_array_equal(model.encode(episodes), encode(model, episodes))


def test_discrete_actions_are_encoded(episodes):
    discrete = noise_logs((4, 2), choices=3)
    model = random_world(discrete, window=WINDOW)
    latents = encode(model, discrete)
    other = noise_logs((4, 2), choices=3)
    other.action[0] = (other.action[0] + 1) % 3
    changed = np.abs(encode(model, other) - latents).max(axis=1) > 1e-6
    # The first action shows in what follows it within its stretch, and nowhere else.
    np.testing.assert_array_equal(changed, [False, True, True, True, False, False, False, False])
