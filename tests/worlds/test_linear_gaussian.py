"""Where the exact log-likelihood is known, the model's bound stays below it and comes close."""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal

from vlbm.data.episodes import Episodes, from_padded
from vlbm.data.sampler import Sampler, WindowStarts
from vlbm.data.view import EpisodeView
from vlbm.estimators.world_models.vlbm import VLBM
from vlbm.worlds.vlbm import BranchingModel, draw_noise, objective

# x_t = A x_{t-1} + B a_{t-1} + noise; s_t = C x_t + noise; r_{t-1} = D x_t + noise; x_0 ~ N(0, P)
A = np.array([[0.8, 0.3], [-0.2, 0.9]])
B = np.array([[0.5], [1.0]])
C = np.array([[1.0, 0.4], [0.0, 1.0]])
D = np.array([[1.0, -0.5]])
P = np.array([[1.0, 0.2], [0.2, 0.8]])
MOVES, SHOWS, PAYS = 0.5**2 * np.eye(2), 0.3**2 * np.eye(2), 1.0**2 * np.eye(1)
STEPS = 6

SETTINGS = VLBM(
    branches=1,
    models=1,
    keep=None,
    latents=2,
    units=32,
    head_units=(32,),
    g_units=(32,),
    drive="encoder",
    emission="state",
    rsa="none",
    mixture_weight=0.0,
    elbo_weight=1.0,
    kl_weight=1.0,
    initial_kl_weight=1.0,
    window=None,
    batch=64,
    steps=1000,
    learning_rate=1e-2,
    clip=5.0,
    validate_every=1000,
)


def simulate(count: int, *, seed: int) -> Episodes:
    random = np.random.default_rng(seed)

    def noise(covariance: np.ndarray) -> np.ndarray:
        return random.multivariate_normal(np.zeros(len(covariance)), covariance, size=count)

    actions = random.normal(size=(count, STEPS, 1))
    latent = noise(P)
    states, rewards = [latent @ C.T + noise(SHOWS)], []
    for time in range(STEPS):
        latent = latent @ A.T + actions[:, time] @ B.T + noise(MOVES)
        states.append(latent @ C.T + noise(SHOWS))
        rewards.append((latent @ D.T + noise(PAYS))[:, 0])
    return from_padded(
        observation=np.stack(states, axis=1).astype(np.float32),
        action=actions.astype(np.float32),
        reward=np.stack(rewards, axis=1).astype(np.float32),
        length=np.full(count, STEPS),
        terminated=np.zeros(count, bool),
    )


def kalman_log_likelihood(states: np.ndarray, actions: np.ndarray, rewards: np.ndarray) -> float:
    """log p(states, rewards | actions) of one episode, by predicting each step from those before."""
    mean, covariance, total = np.zeros(2), P, 0.0
    for time, state in enumerate(states):
        seen, looks, noise = state, C, SHOWS
        if time:
            mean = A @ mean + B @ actions[time - 1]
            covariance = A @ covariance @ A.T + MOVES
            seen, looks = np.append(state, rewards[time - 1]), np.vstack([C, D])
            noise = np.block([[SHOWS, np.zeros((2, 1))], [np.zeros((1, 2)), PAYS]])
        expected = looks @ covariance @ looks.T + noise
        surprise = seen - looks @ mean
        total += multivariate_normal.logpdf(surprise, np.zeros(len(seen)), expected)
        gain = covariance @ looks.T @ np.linalg.inv(expected)
        mean = mean + gain @ surprise
        covariance = covariance - gain @ looks @ covariance
    return total


def joint_log_likelihood(states: np.ndarray, actions: np.ndarray, rewards: np.ndarray) -> float:
    """The same number without a filter: states and rewards are one Gaussian vector."""
    steps = len(actions)
    # Every latent is linear in x_0 and the noises: x_t = weights[t] (x_0, w_1, ..., w_T) + shift[t].
    weights, shift = [np.hstack([np.eye(2), np.zeros((2, 2 * steps))])], [np.zeros(2)]
    for time in range(steps):
        weight = A @ weights[-1]
        weight[:, 2 + 2 * time : 4 + 2 * time] = np.eye(2)
        weights.append(weight)
        shift.append(A @ shift[-1] + B @ actions[time])
    looks = np.vstack([C @ weight for weight in weights] + [D @ weight for weight in weights[1:]])
    mean = np.concatenate([C @ part for part in shift] + [D @ part for part in shift[1:]])
    sources = np.kron(np.eye(1 + steps), MOVES)
    sources[:2, :2] = P
    noise = np.kron(np.eye(2 * (steps + 1) + steps), np.eye(1))
    noise[: 2 * (steps + 1)] *= SHOWS[0, 0]
    noise[2 * (steps + 1) :] *= PAYS[0, 0]
    values = np.concatenate([states.ravel(), rewards])
    return float(multivariate_normal.logpdf(values, mean, looks @ sources @ looks.T + noise))


class HeldOut(NamedTuple):
    """Fresh episodes of the system, and the exact log-likelihood of each."""

    episodes: Episodes
    exact: np.ndarray

    def gap(self, model: BranchingModel) -> np.ndarray:
        """How far each episode's bound, averaged over many latents, lies below the exact number."""
        count = self.episodes.count
        places = WindowStarts(jnp.arange(count), jnp.zeros(count, int))
        windows = Sampler.of(EpisodeView.of(self.episodes)).cut(places, steps=STEPS)

        @eqx.filter_jit
        def bound(model: BranchingModel, keys: jax.Array) -> jax.Array:
            def once(key: jax.Array) -> jax.Array:
                noise = draw_noise(model, windows, key)
                judge = lambda window, noise: objective(model, window, noise, SETTINGS.weights)[0]  # noqa: E731
                terms = jax.vmap(judge)(windows, noise)
                return terms.reconstruction - terms.initial_kl - terms.kl

            return jax.lax.map(once, keys).mean(0)

        standardised = np.asarray(bound(model, jax.random.split(jax.random.key(1), 64)), np.float64)
        # The density of raw numbers is that of standardised ones divided by the scale.
        states, rewards = np.log(model.observation.scale).sum(), np.log(model.reward.scale).sum()
        return self.exact - (standardised - (STEPS + 1) * states - STEPS * rewards)


@pytest.fixture(scope="module")
def held_out() -> HeldOut:
    episodes = simulate(400, seed=1)
    padded = episodes.pad()
    rows = zip(*(part.astype(np.float64) for part in padded[:3]), strict=True)
    return HeldOut(episodes, np.array([kalman_log_likelihood(*row) for row in rows]))


def standard_error(gap: np.ndarray) -> float:
    return float(gap.std(ddof=1) / np.sqrt(len(gap)))


def test_the_filter_gives_the_density_of_the_joint_gaussian(held_out):
    padded = held_out.episodes.pad()
    for index in range(3):
        states, actions, rewards = (part[index].astype(np.float64) for part in padded[:3])
        for steps in (1, 3, STEPS):
            arguments = states[: steps + 1], actions[:steps], rewards[:steps]
            np.testing.assert_allclose(
                kalman_log_likelihood(*arguments), joint_log_likelihood(*arguments), rtol=1e-9
            )


def test_the_bound_stays_below_the_exact_log_likelihood_and_training_brings_it_close(held_out):
    training = simulate(3000, seed=0)
    before = held_out.gap(SETTINGS.make_world(training, key=jax.random.key(0)))
    model = SETTINGS.fit(training, seed=0).model
    after = held_out.gap(model)
    assert model.branches.termination is None
    assert before.mean() > 0
    assert after.mean() > -2 * standard_error(after)
    assert before.mean() / STEPS > 3
    assert after.mean() / STEPS < 0.25
