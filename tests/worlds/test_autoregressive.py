"""The auto-regressive ensemble: masks, densities, drawing value by value, and exact answers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import multivariate_normal

from systems import noise_logs
from vlbm.data.episodes import Episodes, from_padded
from vlbm.data.sampler import Sampler, Window, WindowStarts
from vlbm.data.view import EpisodeView
from vlbm.errors import InputError
from vlbm.estimators.registry import make_estimator
from vlbm.estimators.world_models.autoregressive import AutoRegressive
from vlbm.worlds.autoregressive import AutoRegressiveWorld, Member
from vlbm.worlds.base import Outcome
from vlbm.worlds.transition import Prediction
from vlbm.worlds.vlbm import branch_weights

LOGS = noise_logs((4, 2, 5), terminated=(True, False, True), observations=3)
VALUES = 4  # three changes and the reward
RANDOM = np.random.default_rng(3)
INPUTS = jnp.asarray(RANDOM.normal(size=(20, 4)), jnp.float32)
GIVEN = jnp.asarray(RANDOM.normal(size=(20, VALUES)), jnp.float32)


def world_for(episodes: Episodes = LOGS, **settings: Any) -> AutoRegressiveWorld:
    """A tiny ensemble with members that weigh differently."""
    sizes = {"members": 3, "units": (6,), "masked_units": 2, "sampling": "all", "clip_margin": None}
    world = AutoRegressive(**{**sizes, **settings}).make_world(episodes, key=jax.random.key(0))
    return replace(world, weight_root=jnp.linspace(0.5, -1.5, len(world.weight_root)))


@pytest.fixture(scope="module")
def world() -> AutoRegressiveWorld:
    return world_for()


# Compiled as a whole: a test that runs operation by operation compiles hundreds of them.
@eqx.filter_jit
def members_of(world: AutoRegressiveWorld, values: jax.Array, inputs: jax.Array = INPUTS) -> Prediction:
    """What every member predicts at every row, given the values before each."""
    one = eqx.filter_vmap(Member.__call__, in_axes=(eqx.if_array(0), None, None))
    return jax.vmap(lambda inputs, values: one(world.members, inputs, values), out_axes=1)(inputs, values)


def mixed(world: AutoRegressiveWorld, values: jax.Array, inputs: jax.Array = INPUTS) -> Prediction:
    return world.mix(members_of(world, values, inputs))


@eqx.filter_jit
def step(world: AutoRegressiveWorld, state: jax.Array, action: jax.Array, noise: jax.Array) -> Any:
    return jax.vmap(world.step)(state, action, noise)


def steps_of(episodes: Episodes) -> Window:
    """Every logged step as a window of its own."""
    episode = np.repeat(np.arange(episodes.count), episodes.length)
    start = np.concatenate([np.arange(length) for length in episodes.length])
    places = WindowStarts(jnp.asarray(episode), jnp.asarray(start))
    return Sampler.of(EpisodeView.of(episodes)).cut(places, steps=1)


objective = eqx.filter_jit(lambda world, windows: jax.vmap(world.objective)(windows))


# Masks


def test_what_predicts_a_value_sees_all_values_before_it_and_none_after(world):
    def outputs(values: jax.Array) -> Any:
        found = members_of(world, values)
        laws = jnp.stack([found.values.mean.sum((0, 1)), found.values.scale.sum((0, 1))])
        return laws, found.termination.logit.sum()

    of_value, of_ending = jax.jit(jax.jacobian(outputs))(GIVEN)  # [mean or scale, output, batch, input]
    seen = np.abs(np.asarray(of_value)).max(axis=2)
    for output in range(VALUES):
        np.testing.assert_array_equal(seen[:, output, output:], 0.0)
        assert (seen[:, output, :output] > 1e-4).all()
    assert (np.abs(np.asarray(of_ending)).max(axis=0) > 1e-4).all()


@pytest.mark.parametrize("changed", range(VALUES))
def test_a_changed_value_changes_later_conditionals_and_no_others(world, changed):
    before, after = (members_of(world, values).values for values in (GIVEN, GIVEN.at[:, changed].add(3.0)))
    for part, other in ((before.mean, after.mean), (before.scale, after.scale)):
        np.testing.assert_array_equal(part[..., : changed + 1], other[..., : changed + 1])
        assert (np.abs(part - other)[..., changed + 1 :].max(axis=(0, 1)) > 1e-3).all()


# Densities


def test_the_density_is_the_product_of_conditionals_taken_one_by_one(world):
    windows = steps_of(LOGS)
    inputs, target = jax.vmap(world.read)(windows)
    values, total = np.asarray(target.values), 0.0
    for index in range(VALUES):
        # Only what came before is known; the rest is noise that must not matter.
        known = np.where(np.arange(VALUES) < index, values, RANDOM.normal(size=values.shape) * 9)
        law = mixed(world, jnp.asarray(known, jnp.float32), inputs).values
        mean, scale = law.mean[:, index], law.scale[:, index]
        deviation = (values[:, index] - mean) / scale
        total += -0.5 * deviation**2 - np.log(scale) - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(objective(world, windows)["mixture"], total, rtol=1e-4, atol=1e-4)


def test_members_are_mixed_exactly_like_the_branches_of_a_branching_model(world):
    np.testing.assert_array_equal(world.weight, branch_weights(world.weight_root))
    members, consensus = members_of(world, GIVEN), mixed(world, GIVEN)
    weight = np.asarray(world.weight, np.float64)
    mean = np.einsum("b,bnv->nv", weight, members.values.mean)
    np.testing.assert_allclose(consensus.values.mean, mean, rtol=1e-4, atol=1e-5)
    variance = np.einsum("b,bnv->nv", weight**2, np.asarray(members.values.scale, np.float64) ** 2)
    np.testing.assert_allclose(consensus.values.scale, np.sqrt(variance), rtol=1e-4)
    chance = weight @ expit(np.asarray(members.termination.logit, np.float64))
    np.testing.assert_allclose(consensus.termination.probability, chance, rtol=1e-4)


def test_the_members_own_likelihoods_count_as_much_as_they_are_asked_to(world):
    windows = steps_of(LOGS)
    inputs, target = jax.vmap(world.read)(windows)
    members = members_of(world, target.values, inputs)
    own = members.values.log_prob(target.values).sum(-1).mean(0)
    ended = np.asarray(target.terminated)
    chance = expit(np.asarray(members.termination.logit, np.float64))
    of_members = np.log(np.where(ended > 0, chance, 1 - chance)).mean(0)
    chance = np.asarray(world.weight) @ chance
    of_mixture = np.log(np.where(ended > 0, chance, 1 - chance))
    for weight in (0.0, 0.5):
        found = objective(replace(world, member_weight=weight), windows)
        np.testing.assert_allclose(found["members"], weight * own, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found["termination"], of_mixture + weight * of_members, rtol=1e-3)


# Drawing


def drawn_in(world: AutoRegressiveWorld, noise: jax.Array) -> tuple[jax.Array, Any, Outcome]:
    """Values that steps drew in some states, what a single pass says of them, and what the steps led to."""
    state, action = INPUTS[:, :3], INPUTS[:, 3:]
    after, outcome = step(world, state, action, noise)
    reward = world.reward.apply(outcome.reward[:, None])
    values = jnp.concatenate([jax.vmap(world.encode_state)(state, after), reward], axis=1)
    inputs = jax.vmap(world.inputs)(state, action)
    return values, mixed(world, values, inputs), outcome


def test_values_drawn_one_by_one_are_those_that_one_pass_over_all_of_them_describes(world):
    noise = jnp.asarray(RANDOM.normal(size=(20, VALUES)), jnp.float32)
    values, described, outcome = drawn_in(world, noise)
    np.testing.assert_allclose(values, described.values.sample(noise), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(outcome.termination, described.termination.probability, rtol=1e-3)


def test_values_are_predicted_from_clipped_ones(world):
    noise = jnp.asarray(RANDOM.normal(size=(20, VALUES)), jnp.float32)
    narrow = replace(
        world,
        imagination=AutoRegressive(sampling="all", clip_margin=0.0).imagination,
        observation=replace(world.observation, low=jnp.full(3, -0.3), high=jnp.full(3, 0.4)),
        reward=replace(world.reward, low=jnp.full(1, -0.2), high=jnp.full(1, 0.3)),
    )
    values, described, outcome = drawn_in(narrow, noise)
    free = described.values.sample(noise)
    after = jnp.clip(INPUTS[:, :3] + narrow.change.invert(free[:, :3]), -0.3, 0.4)
    shown = narrow.observation.apply(outcome.observation)
    np.testing.assert_allclose(shown, after, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(values[:, 3], jnp.clip(free[:, 3], -0.2, 0.3), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(outcome.termination, described.termination.probability, rtol=1e-3)
    assert np.isclose(shown, -0.3, atol=1e-5).any()
    assert np.isclose(shown, 0.4, atol=1e-5).any()


def test_predictions_stay_in_the_logged_range(world):
    start = jax.vmap(lambda seen: world.reset(seen, None))(jnp.asarray(LOGS.observation[:5] * 3))
    noise = jnp.asarray(RANDOM.normal(size=(5, VALUES)), jnp.float32)
    kept = replace(world, imagination=AutoRegressive(sampling="all", clip_margin=0.1).imagination)
    _, outcome = step(kept, start, jnp.ones((5, 1)) * 4, noise)
    low, high = LOGS.observation.min(axis=0), LOGS.observation.max(axis=0)
    reach = 0.1 * (high - low) + 1e-4
    assert (outcome.observation > low - reach).all()
    assert (outcome.observation < high + reach).all()
    _, wide = step(world, start, jnp.ones((5, 1)) * 4, noise)
    assert ((wide.observation > high + reach) | (wide.observation < low - reach)).any()


def test_noise_is_drawn_only_where_values_are_sampled(world):
    assert np.abs(world.draw_noise(jax.random.key(0))).min() > 0
    steady = replace(world, imagination=AutoRegressive(sampling="none").imagination)
    np.testing.assert_array_equal(steady.draw_noise(jax.random.key(0)), np.zeros(VALUES))


def test_terminations_start_at_the_logged_rate_and_without_any_there_are_none(world):
    where = lambda world: (world.members.mlp.last.weight, world.members.leave, world.members.skip)  # noqa: E731
    silent = eqx.tree_at(where, world, [jnp.zeros_like(leaf) for leaf in where(world)])
    np.testing.assert_allclose(members_of(silent, GIVEN).termination.probability, 2 / 11, rtol=1e-5)
    never = world_for(noise_logs((4, 4), observations=3))
    assert members_of(never, GIVEN).termination is None
    _, outcome = step(never, INPUTS[:, :3], INPUTS[:, 3:], GIVEN)
    np.testing.assert_array_equal(outcome.termination, 0.0)


def test_it_says_that_it_cannot_begin_from_nothing(world):
    with pytest.raises(InputError, match="AutoRegressiveWorld cannot imagine how an episode begins"):
        world.reset_from_prior(jax.random.key(0))


def test_the_papers_preset_is_ten_members_trained_by_their_mixture_alone_and_drawn_from():
    settings = make_estimator("ar", preset="paper")
    assert (settings.members, settings.member_weight) == (10, 0.0)
    assert (settings.imagination.sampling, settings.imagination.clip_margin) == ("all", None)
    assert settings.emission == "state"


def test_states_can_be_predicted_as_they_are_instead_of_as_changes(world):
    plain, windows = replace(world, emission="state"), steps_of(LOGS)
    seen = world.observation.apply(windows.observation)
    _, target = jax.vmap(plain.read)(windows)
    np.testing.assert_allclose(target.values[:, :3], seen[:, 1], rtol=1e-6)
    noise = jnp.asarray(RANDOM.normal(size=(20, VALUES)), jnp.float32)
    values, described, outcome = drawn_in(plain, noise)
    np.testing.assert_allclose(values, described.values.sample(noise), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(
        plain.observation.apply(outcome.observation), values[:, :3], rtol=1e-3, atol=1e-4
    )


# An exact answer: s' = A s + B a + noise, r = c s' + noise, with noise that is correlated

A = np.array([[0.8, 0.3], [-0.2, 0.9]])
B = np.array([[0.5], [1.0]])
C = np.array([1.0, -0.5])
NOISE = np.array([[0.25, 0.2], [0.2, 0.25]])
PAYS = 0.3**2
# (s', r) given (s, a) is one Gaussian vector.
LOOKS = np.vstack([np.eye(2), C])
JOINT = LOOKS @ NOISE @ LOOKS.T + np.diag([0.0, 0.0, PAYS])
STEPS = 5


def simulate(count: int, *, seed: int) -> Episodes:
    random = np.random.default_rng(seed)
    state = random.normal(size=(count, 2))
    states, actions, rewards = [state], [], []
    for _ in range(STEPS):
        action = random.normal(size=(count, 1))
        state = state @ A.T + action @ B.T + random.multivariate_normal(np.zeros(2), NOISE, size=count)
        states.append(state)
        actions.append(action)
        rewards.append(state @ C + random.normal(size=count) * np.sqrt(PAYS))
    return from_padded(
        observation=np.stack(states, axis=1).astype(np.float32),
        action=np.stack(actions, axis=1).astype(np.float32),
        reward=np.stack(rewards, axis=1).astype(np.float32),
        length=np.full(count, STEPS),
        terminated=np.zeros(count, bool),
    )


class Fitted(NamedTuple):
    world: AutoRegressiveWorld
    held_out: Episodes


@pytest.fixture(scope="module")
def fitted() -> Fitted:
    settings = AutoRegressive(
        members=2,
        units=(32,),
        masked_units=4,
        member_weight=0.0,
        batch=256,
        steps=600,
        learning_rate=1e-2,
        validate_every=300,
        sampling="all",
        clip_margin=None,
    )
    return Fitted(settings.fit(simulate(2000, seed=0), seed=0).model, simulate(500, seed=1))


def expected_step(state: np.ndarray, action: np.ndarray) -> np.ndarray:
    return (state @ A.T + action @ B.T) @ LOOKS.T


def test_training_brings_the_log_likelihood_to_the_exact_one(fitted):
    world, held_out = fitted
    padded = held_out.pad()
    state, after, action = padded.observation[:, :-1], padded.observation[:, 1:], padded.action
    outcome = np.concatenate([after, padded.reward[..., None]], axis=-1)
    surprise = (outcome - expected_step(state, action)).reshape(-1, 3).astype(np.float64)
    exact = multivariate_normal.logpdf(surprise, np.zeros(3), JOINT).mean()
    mixture = objective(world, steps_of(held_out))["mixture"].mean()
    # The density of raw numbers is that of standardised ones divided by the scale.
    scales = (*np.asarray(world.change.scale * world.observation.scale), *np.asarray(world.reward.scale))
    learnt = float(mixture) - np.log(scales).sum()
    independent = multivariate_normal.logpdf(surprise, np.zeros(3), np.diag(np.diag(JOINT))).mean()
    assert exact - independent > 0.5
    assert -0.02 < exact - learnt < 0.06


def test_draws_have_the_right_mean_and_covariance(fitted):
    state, action = np.array([0.5, -0.3]), np.array([0.4])
    count, world = 20000, fitted.world
    begun = world.reset(jnp.asarray(state, jnp.float32), None)
    noise = jnp.asarray(RANDOM.normal(size=(count, 3)), jnp.float32)
    actions = jnp.broadcast_to(jnp.asarray(action, jnp.float32), (count, 1))
    _, outcome = step(world, jnp.broadcast_to(begun, (count, 2)), actions, noise)
    draws = np.concatenate([outcome.observation, np.asarray(outcome.reward)[:, None]], axis=1)
    np.testing.assert_allclose(draws.mean(axis=0), expected_step(state, action), atol=0.1)
    np.testing.assert_allclose(np.cov(draws.T), JOINT, atol=0.04)
