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

from systems import noise_logs, random_world
from vlbm.episodes import Episodes, from_padded
from vlbm.errors import InputError
from vlbm.estimators.worlds.ar import AutoRegressive
from vlbm.models.autoregressive import AutoRegressiveModel
from vlbm.models.base import Outcome
from vlbm.windows import Window, WindowSource

LOGS = noise_logs((4, 2, 5), terminated=(True, False, True), observations=3)
KEY = jax.random.key(7)
VALUES = 4  # three changes and the reward


def world_for(episodes: Episodes = LOGS, **settings: Any) -> AutoRegressiveModel:
    """A tiny ensemble with random weights of its members, and biases that let units be on and off."""
    sizes = {"members": 3, "units": (6,), "masked_units": 2, "sampling": "all"}
    world = AutoRegressive(**{**sizes, **settings}).make_world(episodes, key=jax.random.key(0))
    return replace(world, weight_root=jnp.linspace(0.5, -1.5, world.members))


WORLD = world_for()
RANDOM = np.random.default_rng(3)
INPUTS = jnp.asarray(RANDOM.normal(size=(20, 4)), jnp.float32)
GIVEN = jnp.asarray(RANDOM.normal(size=(20, VALUES)), jnp.float32)


def window_of(episodes: Episodes, steps: int) -> Window:
    count = episodes.count
    return WindowSource.of(episodes).cut(jnp.arange(count), jnp.zeros(count, int), steps=steps)


@eqx.filter_jit
def conditionals(world: AutoRegressiveModel, values: jax.Array, inputs: jax.Array = INPUTS):
    """Mean, scale and ending probability of the consensus, given the values before each."""
    mixed = world.emit(inputs, values).mixed(world.weight)
    mean, scale = (
        jnp.concatenate([of_change, of_reward[..., None]], axis=-1)
        for of_change, of_reward in (
            (mixed.observation.mean, mixed.reward.mean),
            (mixed.observation.scale, mixed.reward.scale),
        )
    )
    return mean, scale, None if mixed.ending is None else mixed.ending.probability


# Compiled as a whole: a test that runs operation by operation compiles hundreds of them.
draw = eqx.filter_jit(AutoRegressiveModel.draw)


@eqx.filter_jit
def step(world: AutoRegressiveModel, state: Any, action: jax.Array, *, key: jax.Array) -> tuple[Any, Outcome]:
    count = jax.tree.leaves(state)[0].shape[-2]
    return world.step(state, action, luck=world.luck(count, key=key))


log_likelihood = eqx.filter_jit(AutoRegressiveModel.log_likelihood)


# Masks


def test_what_predicts_a_value_sees_all_values_before_it_and_none_after():
    def outputs(values: jax.Array) -> jax.Array:
        mean, scale, ending = conditionals(WORLD, values)
        assert ending is not None
        return jnp.stack([mean.sum(0), scale.sum(0)]), ending.sum()

    of_value, of_ending = jax.jit(jax.jacobian(outputs))(GIVEN)  # [mean or scale, output, batch, input]
    seen = np.abs(np.asarray(of_value)).max(axis=2)
    for output in range(VALUES):
        np.testing.assert_array_equal(seen[:, output, output:], 0.0)
        assert (seen[:, output, :output] > 1e-4).all()
    assert (np.abs(np.asarray(of_ending)).max(axis=0) > 1e-5).all()


def test_masked_weights_do_nothing():
    spoiled = eqx.tree_at(
        lambda world: [layer(world).weight for layer in LAYERS],
        WORLD,
        [jnp.where(layer(WORLD).mask, layer(WORLD).weight, 1e9) for layer in LAYERS],
    )
    for found, expected in zip(conditionals(spoiled, GIVEN), conditionals(WORLD, GIVEN), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert all(0 < layer(WORLD).mask.mean() < 1 for layer in LAYERS)


LAYERS = (
    lambda world: world.network.enter,
    lambda world: world.network.leave,
    lambda world: world.network.skip,
)


# Densities


def test_the_density_is_the_product_of_conditionals_taken_one_by_one():
    window = window_of(LOGS, 5)
    inputs, target = WORLD.read(window)
    values = np.concatenate([target.change, target.reward[..., None]], axis=-1)
    valid, total = np.asarray(window.valid), 0.0
    for index in range(VALUES):
        # Only what came before is known; the rest is noise that must not matter.
        known = np.where(np.arange(VALUES) < index, values, RANDOM.normal(size=values.shape) * 9)
        mean, scale, _ = conditionals(WORLD, jnp.asarray(known, jnp.float32), inputs)
        deviation = (values[..., index] - mean[..., index]) / scale[..., index]
        density = -0.5 * deviation**2 - np.log(scale[..., index]) - 0.5 * np.log(2 * np.pi)
        total += np.where(valid, density, 0.0).sum() / valid.sum()
    _, mixture = log_likelihood(WORLD, window)
    assert float(mixture.data) == pytest.approx(total, rel=1e-4)


def test_members_are_mixed_exactly_like_the_branches_of_a_branching_model():
    branching = replace(random_world(LOGS), weight_root=WORLD.weight_root)
    np.testing.assert_array_equal(WORLD.weight, branching.weight)
    emission = WORLD.emit(INPUTS, GIVEN)
    weight = np.asarray(WORLD.weight, np.float64)
    mean, scale, ending = conditionals(WORLD, GIVEN)
    single_mean, single_scale = (
        np.concatenate([of_change, np.asarray(of_reward)[..., None]], axis=-1).astype(np.float64)
        for of_change, of_reward in (
            (emission.observation.mean, emission.reward.mean),
            (emission.observation.scale, emission.reward.scale),
        )
    )
    np.testing.assert_allclose(mean, np.einsum("b,bnv->nv", weight, single_mean), rtol=1e-4, atol=1e-5)
    variance = np.einsum("b,bnv->nv", weight**2, single_scale**2)
    np.testing.assert_allclose(scale, np.sqrt(variance), rtol=1e-4)
    chance = weight @ expit(np.asarray(emission.ending.logit, np.float64))
    np.testing.assert_allclose(ending, chance, rtol=1e-4)


def test_padding_contributes_nothing_to_likelihood_or_gradient():
    window = window_of(LOGS, 5)
    padding = ~window.observed[..., None]
    settings = AutoRegressive(members=3)

    @eqx.filter_jit
    @eqx.filter_value_and_grad
    def total(world: AutoRegressiveModel, window: Window) -> jax.Array:
        return jnp.stack(list(settings.objective(world, window).values())).sum()

    spoiled = replace(window, observation=jnp.where(padding, 1e3, window.observation))
    value, gradient = total(WORLD, spoiled)
    expected, expected_gradient = total(WORLD, window)
    assert float(value) == pytest.approx(float(expected), rel=1e-5)
    for found, wanted in zip(jax.tree.leaves(gradient), jax.tree.leaves(expected_gradient), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-5)
    for junk in (np.nan, np.inf):
        broken = replace(window, reward=jnp.where(padding[1:, :, 0], junk, window.reward))
        for found, wanted in zip(log_likelihood(WORLD, broken), log_likelihood(WORLD, window), strict=True):
            np.testing.assert_allclose(found.data, wanted.data, rtol=1e-5)


# Drawing


def test_values_drawn_one_by_one_are_those_that_one_pass_over_all_of_them_describes():
    noise = jnp.asarray(RANDOM.normal(size=(20, VALUES)), jnp.float32)
    drawn, ending = draw(WORLD, INPUTS, noise)
    mean, scale, probability = conditionals(WORLD, drawn)
    np.testing.assert_allclose(drawn, mean + scale * noise, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(ending, probability, rtol=1e-4)


def test_values_are_predicted_from_clipped_ones():
    noise = jnp.asarray(RANDOM.normal(size=(20, VALUES)), jnp.float32)
    bounds = jnp.full((20, VALUES), -0.2), jnp.full((20, VALUES), 0.3)
    drawn, ending = draw(WORLD, INPUTS, noise, bounds)
    mean, scale, probability = conditionals(WORLD, drawn)
    np.testing.assert_allclose(drawn, jnp.clip(mean + scale * noise, -0.2, 0.3), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(ending, probability, rtol=1e-4)
    assert np.asarray(drawn).min() == np.float32(-0.2)
    assert np.asarray(drawn).max() == np.float32(0.3)


def test_predictions_stay_in_the_logged_range_and_policies_meet_the_same_luck():
    start = jnp.broadcast_to(jnp.asarray(LOGS.observation[:5] * 3), (2, 5, 3))
    state = WORLD.begin(start, key=KEY)
    _, outcome = step(WORLD, state, jnp.ones((2, 5, 1)) * 4, key=KEY)
    for part in outcome:
        np.testing.assert_array_equal(part[0], part[1])
    assert len(np.unique(np.asarray(outcome.reward[0]))) > 1
    low, high = LOGS.observation.min(axis=0), LOGS.observation.max(axis=0)
    reach = 0.1 * (high - low) + 1e-4
    assert (outcome.observation > low - reach).all()
    assert (outcome.observation < high + reach).all()
    free = replace(WORLD, imagination=AutoRegressive(sampling="all", clip_margin=None).imagination)
    _, wide = step(free, state, jnp.ones((2, 5, 1)) * 4, key=KEY)
    assert ((wide.observation > high + reach) | (wide.observation < low - reach)).any()


def test_the_world_without_members_that_weigh_nothing_is_the_same_world():
    world = replace(WORLD, weight_root=jnp.array([0.8, 1e-4, -1.2]))
    pruned = world.pruned()
    assert (world.members, pruned.members) == (3, 2)
    noise = jnp.zeros((20, VALUES))
    for found, expected in zip(draw(pruned, INPUTS, noise), draw(world, INPUTS, noise), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5)
    assert WORLD.pruned() is WORLD


def test_it_says_that_it_cannot_begin_from_nothing():
    with pytest.raises(InputError, match="AutoRegressiveModel cannot imagine how an episode begins"):
        WORLD.begin_from_prior((2, 3), key=KEY)


def test_drawing_value_by_value_repeats_nothing_of_the_networks_first_part():
    jaxpr = jax.make_jaxpr(lambda noise: WORLD.draw(INPUTS, noise)[0])(jnp.zeros((20, VALUES)))
    (loop,) = [equation for equation in jaxpr.jaxpr.eqns if equation.primitive.name == "scan"]
    products = [
        equation
        for equation in loop.params["jaxpr"].jaxpr.eqns
        if equation.primitive.name == "dot_general" and WORLD.members in equation.invars[1].aval.shape
    ]
    shapes = {size for product in products for variable in product.invars for size in variable.aval.shape}
    assert products
    # Batch, members, values, masked units of one rank, outputs: but not the 6 features.
    assert shapes <= {20, 3, VALUES, 2, 2 * VALUES + 1}


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
    world: AutoRegressiveModel
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
    padded = held_out.padded()
    state, after, action = padded.observation[:, :-1], padded.observation[:, 1:], padded.action
    outcome = np.concatenate([after, padded.reward[..., None]], axis=-1)
    surprise = (outcome - expected_step(state, action)).reshape(-1, 3).astype(np.float64)
    exact = multivariate_normal.logpdf(surprise, np.zeros(3), JOINT).mean()
    _, mixture = log_likelihood(world, window_of(held_out, STEPS))
    # The density of raw numbers is that of standardised ones divided by the scale.
    scales = (*np.asarray(world.change.scale * world.observation.scale), *np.asarray(world.reward.scale))
    learnt = float(mixture.data) - np.log(scales).sum()
    independent = multivariate_normal.logpdf(surprise, np.zeros(3), np.diag(np.diag(JOINT))).mean()
    assert exact - independent > 0.5
    assert -0.02 < exact - learnt < 0.06


def test_draws_have_the_right_mean_and_covariance(fitted):
    state, action = np.array([0.5, -0.3]), np.array([0.4])
    count = 20000
    begun = fitted.world.begin(jnp.broadcast_to(jnp.asarray(state, jnp.float32), (count, 2)), key=KEY)
    actions = jnp.broadcast_to(jnp.asarray(action, jnp.float32), (count, 1))
    _, outcome = step(fitted.world, begun, actions, key=KEY)
    draws = np.concatenate([outcome.observation, np.asarray(outcome.reward)[:, None]], axis=1)
    np.testing.assert_allclose(draws.mean(axis=0), expected_step(state, action), atol=0.1)
    np.testing.assert_allclose(np.cov(draws.T), JOINT, atol=0.04)
