"""The branching model: each branch run by hand, and what is made of all of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from systems import bits, noise_logs, random_world
from vlbm.episodes import Episodes
from vlbm.models.base import Imagination, Outcome, open_loop_error, ready
from vlbm.models.branching import BranchingModel, BranchState
from vlbm.models.latent import Emission
from vlbm.networks import running_averages
from vlbm.windows import WindowSource

MEANS = Imagination(sampling="none")
KEY = jax.random.key(0)
STEPS = 3


@pytest.fixture(scope="module")
def episodes() -> Episodes:
    return noise_logs((6, 3, 8), terminated=(True, False, True))


@pytest.fixture(scope="module")
def world(episodes) -> BranchingModel:
    return replace(random_world(episodes), imagination=MEANS)


@pytest.fixture(scope="module")
def start(episodes) -> jax.Array:
    return jnp.asarray(episodes.observation[:4])


@pytest.fixture(scope="module")
def actions() -> jax.Array:
    return jax.random.normal(jax.random.key(1), (STEPS, 4, 1))


begin = eqx.filter_jit(BranchingModel.begin)


@eqx.filter_jit
def advance(world: BranchingModel, state: BranchState, action: jax.Array, *, key: jax.Array) -> Any:
    return world.step(state, action, luck=world.luck(state.latent.shape[-2], key=key))


def imagine(world: BranchingModel, start: jax.Array, actions: jax.Array) -> tuple[BranchState, Outcome]:
    """Where a few steps lead, and what each of them showed."""
    state, outcomes = begin(world, start, key=KEY), []
    for time, action in enumerate(actions):
        state, outcome = advance(world, state, action, key=jax.random.fold_in(KEY, time))
        outcomes.append(outcome)
    return state, Outcome(*(np.stack(part) for part in zip(*outcomes, strict=True)))


def branch(tree: Any, index: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[index], tree)


@eqx.filter_jit
def run_by_hand(world: BranchingModel, start: jax.Array, actions: jax.Array, index: int) -> list[Emission]:
    """What one branch predicts when its decoder is run alone, in standardised units."""
    encoder, decoder = branch(world.encoder, 0), branch(world.decoder, index)
    latent = encoder.begin(world.observation.apply(start)).mean
    state, emissions = decoder.lstm.zero(start.shape[:1]), []
    for action in actions:
        inputs = jnp.concatenate([latent, world.action.apply(action)], axis=-1)
        state = decoder.lstm.step(state, inputs)
        latent = decoder.transition(decoder.alignment(state.hidden)).mean
        emissions.append(decoder.emit(latent))
    return emissions


def test_one_branch_predicts_what_its_decoder_does_when_run_by_hand(world, start, actions):
    single = replace(
        world, decoder=jax.tree.map(lambda leaf: leaf[:1], world.decoder), weight_root=jnp.array([3.0])
    )
    _, outcome = imagine(single, start, actions)
    for time, emission in enumerate(run_by_hand(world, start, actions, 0)):
        np.testing.assert_allclose(
            outcome.observation[time], world.observation.invert(emission.observation.mean), rtol=1e-5
        )
        reward = world.reward.invert(emission.reward.mean[..., None])[..., 0]
        np.testing.assert_allclose(outcome.reward[time], reward, rtol=1e-5)
        np.testing.assert_allclose(outcome.ending[time], emission.ending.probability, rtol=1e-4)


def test_several_branches_predict_their_weighted_average(world, start, actions):
    _, outcome = imagine(world, start, actions)
    branches = [run_by_hand(world, start, actions, index) for index in range(3)]
    root = np.asarray(world.weight_root, np.float64)
    weight = root**2 / (root**2).sum()
    for time in range(STEPS):
        emitted = [emissions[time] for emissions in branches]
        observation = sum(w * np.asarray(e.observation.mean) for w, e in zip(weight, emitted, strict=True))
        reward = sum(w * np.asarray(e.reward.mean) for w, e in zip(weight, emitted, strict=True))
        ending = sum(w * np.asarray(e.ending.probability) for w, e in zip(weight, emitted, strict=True))
        np.testing.assert_allclose(
            outcome.observation[time], world.observation.invert(observation), rtol=1e-4
        )
        np.testing.assert_allclose(
            outcome.reward[time], world.reward.invert(reward[..., None])[..., 0], rtol=1e-4, atol=1e-6
        )
        np.testing.assert_allclose(outcome.ending[time], ending, rtol=1e-4)


def test_weights_are_squared_roots_over_their_sum(world):
    weighed = replace(world, weight_root=jnp.array([1.0, -2.0, 0.5]))
    np.testing.assert_allclose(weighed.weight, np.array([1.0, 4.0, 0.25]) / 5.25, rtol=1e-6)
    np.testing.assert_allclose(weighed.weight.sum(), 1.0, rtol=1e-6)
    vanishing = replace(world, weight_root=jnp.zeros(3))
    np.testing.assert_array_equal(vanishing.weight, 0.0)


@eqx.filter_jit
def mixture_at(world: BranchingModel, latent: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Means of state and reward in raw units, and the chance of ending, at the branches' latents."""
    emitted = [branch(world.decoder, index).emit(latent[index]) for index in range(world.branches)]
    pairs = list(zip(world.weight, emitted, strict=True))
    observation = sum(weight * emission.observation.mean for weight, emission in pairs)
    reward = sum(weight * emission.reward.mean for weight, emission in pairs)
    ending = sum(weight * emission.ending.probability for weight, emission in pairs)
    return world.observation.invert(observation), world.reward.invert(reward[..., None])[..., 0], ending


@eqx.filter_jit
def spread_at(world: BranchingModel, latent: jax.Array) -> jax.Array:
    """Deviation of the state in raw units, at the branches' latents."""
    emitted = [branch(world.decoder, index).emit(latent[index]) for index in range(world.branches)]
    pairs = zip(world.weight, emitted, strict=True)
    variance = sum(weight**2 * emission.observation.scale**2 for weight, emission in pairs)
    return jnp.sqrt(variance) * world.observation.scale


def test_draws_scatter_around_the_mixture_at_the_latents_that_were_drawn(world, start):
    many = jnp.tile(start, (2000, 1))
    action = jnp.zeros((8000, 1))
    drawn = replace(world, imagination=Imagination(sampling="all"))
    state, outcome = advance(drawn, begin(drawn, many, key=KEY), action, key=jax.random.key(1))
    mean, _, ending = mixture_at(world, state.latent)
    deviation = np.asarray((outcome.observation - mean) / spread_at(world, state.latent), np.float64)
    np.testing.assert_allclose(deviation.mean(0), 0.0, atol=0.05)
    np.testing.assert_allclose(deviation.std(0), 1.0, atol=0.04)
    np.testing.assert_allclose(outcome.ending, ending, rtol=1e-4)


def test_latents_of_a_branch_are_drawn_from_its_transition(world, start):
    many = jnp.tile(start[:1], (8000, 1))
    drawn = replace(world, imagination=Imagination(sampling="all"))
    begun = begin(world, many, key=KEY)  # the same latent for all, at the mean
    state, _ = advance(drawn, begun, jnp.zeros((8000, 1)), key=jax.random.key(1))
    for index in range(3):
        decoder = branch(world.decoder, index)
        inputs = jnp.concatenate([begun.latent[index, 0], world.action.apply(jnp.zeros(1))])
        hidden = decoder.lstm.step(decoder.lstm.zero(()), inputs).hidden
        law = decoder.transition(decoder.alignment(hidden))
        deviation = (np.asarray(state.latent[index], np.float64) - law.mean) / np.asarray(law.scale)
        np.testing.assert_allclose(deviation.mean(0), 0.0, atol=0.05)
        np.testing.assert_allclose(deviation.std(0), 1.0, atol=0.04)
    # Branches draw for themselves: their latents do not move together.
    deviations = np.asarray(state.latent - state.latent.mean(1, keepdims=True)).reshape(3, -1)
    assert np.abs(np.corrcoef(deviations) - np.eye(3)).max() < 0.05


def test_sampling_latents_alone_shows_the_means_at_the_latents_drawn(world, start, actions):
    drawn = replace(world, imagination=Imagination(sampling="latents"))
    state, outcome = advance(drawn, begin(drawn, start, key=KEY), actions[0], key=KEY)
    mean, reward, _ = mixture_at(world, state.latent)
    np.testing.assert_allclose(outcome.observation, mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(outcome.reward, reward, rtol=1e-4, atol=1e-5)
    still, _ = advance(world, begin(world, start, key=KEY), actions[0], key=KEY)
    assert not np.allclose(state.latent, still.latent, atol=1e-2)


def test_luck_is_shared_by_policies_and_not_by_episodes(world, start, actions):
    drawn = replace(world, imagination=Imagination(sampling="all"))
    both = jnp.broadcast_to(start, (2, *start.shape))
    same = jnp.broadcast_to(actions[0, :1], (2, 4, 1))
    alike = jnp.broadcast_to(start[:1], both.shape)
    _, outcome = advance(drawn, begin(drawn, alike, key=KEY), same, key=KEY)
    np.testing.assert_array_equal(outcome.observation[0], outcome.observation[1])
    np.testing.assert_array_equal(outcome.reward[0], outcome.reward[1])
    assert len(np.unique(np.asarray(outcome.reward[0]))) == 4


# Branches that weigh nothing


def test_a_state_of_some_episodes_is_theirs_alone(world, start):
    batch = jnp.stack([start, 2 * start, 3 * start])
    whole = world.begin(batch, key=jax.random.key(0))
    some = world.kept(whole, jnp.array([2, 0]), jnp.array([[3, 1], [0, 1]]))
    for place, (policy, episodes) in enumerate(((2, [3, 1]), (0, [0, 1]))):
        for own, of_all in zip((some.latent, *some.lstm), (whole.latent, *whole.lstm), strict=True):
            np.testing.assert_array_equal(own[:, place], of_all[:, policy, np.array(episodes)])
        np.testing.assert_array_equal(some.age[place], whole.age[policy, np.array(episodes)])


def test_branches_that_weigh_nothing_are_dropped_and_nothing_changes(world, start, actions):
    heavy = replace(world, weight_root=jnp.array([1.0, 1e-3, -2.0]))
    light = heavy.pruned()
    assert np.asarray(heavy.weight)[1] < 1e-5
    assert light.branches == 2
    np.testing.assert_array_equal(light.weight_root, [1.0, -2.0])
    assert {leaf.shape[0] for leaf in jax.tree.leaves(light.decoder)} == {2}
    assert bits(branch(light.decoder, 1)) == bits(branch(heavy.decoder, 2))
    assert begin(light, start, key=KEY).latent.shape[0] == 2
    for part, expected in zip(
        imagine(light, start, actions)[1], imagine(heavy, start, actions)[1], strict=True
    ):
        np.testing.assert_allclose(part, expected, rtol=1e-4, atol=1e-4)


def test_a_model_whose_branches_all_weigh_something_is_left_alone(world):
    assert world.pruned() is world
    assert replace(world, weight_root=jnp.array([1.0, 1e-2, 1.0])).pruned().branches == 3
    assert replace(world, weight_root=jnp.array([1.0, 1e-2, 1.0])).pruned(1e-3).branches == 2


def test_encoders_of_dropped_branches_go_with_them(episodes):
    world = random_world(episodes, shared_encoder=False)
    light = replace(world, weight_root=jnp.array([0.0, 1.0, 2.0])).pruned()
    assert {leaf.shape[0] for leaf in jax.tree.leaves(light.encoder)} == {2}
    assert bits(branch(light.encoder, 0)) == bits(branch(world.encoder, 1))
    shared = replace(random_world(episodes), weight_root=jnp.array([0.0, 1.0, 2.0])).pruned()
    assert {leaf.shape[0] for leaf in jax.tree.leaves(shared.encoder)} == {1}


@pytest.mark.parametrize("normalisation", ["none", "layer", "batch"])
def test_a_world_made_ready_imagines_the_same_with_fewer_parts(episodes, start, actions, normalisation):
    imagination = Imagination(sampling="none", reencode_every=2)
    heavy = random_world(episodes, normalisation=normalisation)
    heavy = replace(heavy, imagination=imagination, weight_root=jnp.array([1.0, 1e-3, -2.0]))
    light = ready(heavy)
    for part, expected in zip(
        imagine(light, start, actions)[1], imagine(heavy, start, actions)[1], strict=True
    ):
        np.testing.assert_allclose(part, expected, rtol=1e-4, atol=1e-4)
    assert light.branches == 2
    assert light.decoder.lstm.inputs.weight.size == 0
    assert bool(running_averages(heavy)) == (normalisation == "batch")
    assert running_averages(light) == []


# Re-encoding, clipping, beginnings and endings


def test_reencoding_starts_afresh_from_what_was_predicted_when_it_is_due(world, start, actions):
    fresh = replace(world, imagination=Imagination(sampling="none", reencode_every=2))
    plain_state, plain = imagine(world, start, actions[:1])
    state, outcome = imagine(fresh, start, actions[:1])
    np.testing.assert_array_equal(outcome.observation, plain.observation)
    assert bits(state) == bits(plain_state)

    state, outcome = imagine(fresh, start, actions[:2])
    _, plain = imagine(world, start, actions[:2])
    np.testing.assert_array_equal(outcome.observation, plain.observation)
    expected = begin(world, jnp.asarray(outcome.observation[-1]), key=KEY)
    np.testing.assert_allclose(state.latent, expected.latent, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(state.lstm.hidden, 0.0)
    np.testing.assert_array_equal(state.lstm.cell, 0.0)
    np.testing.assert_array_equal(state.age, 0)


def test_predictions_are_kept_in_the_logged_range_widened_by_the_margin(world, episodes, start, actions):
    wild = eqx.tree_at(
        lambda world: (world.decoder.observation_head.linear.bias, world.decoder.reward_head.linear.bias),
        world,
        (
            world.decoder.observation_head.linear.bias + jnp.array([1e3, -1e3, 0, 0]),
            world.decoder.reward_head.linear.bias + jnp.array([1e3, 0]),
        ),
    )
    clipped = replace(wild, imagination=Imagination(sampling="none", clip_margin=0.1))
    _, outcome = imagine(clipped, start, actions[:1])
    low, high = episodes.observation.min(0), episodes.observation.max(0)
    expected = [high[0] + 0.1 * (high[0] - low[0]), low[1] - 0.1 * (high[1] - low[1])]
    np.testing.assert_allclose(outcome.observation[0], np.tile(expected, (4, 1)), rtol=1e-4)
    top = episodes.reward.max() + 0.1 * np.ptp(episodes.reward)
    np.testing.assert_allclose(outcome.reward[0], np.full(4, top), rtol=1e-4)
    _, free = imagine(wild, start, actions[:1])
    assert (free.observation[0, :, 0] > expected[0]).all()


@pytest.mark.parametrize("sampling", ["none", "latents"])
def test_branches_begin_at_one_latent_of_the_prior_and_show_the_mixture_there(world, sampling):
    drawn = replace(world, imagination=Imagination(sampling=sampling))
    state, observation = eqx.filter_jit(BranchingModel.begin_from_prior)(drawn, (2, 1000), key=KEY)
    assert state.latent.shape == (3, 2, 1000, 3)
    for index in range(3):
        np.testing.assert_array_equal(state.latent[index], state.latent[0])
    # Drawn even where means are asked for: the mean of the prior is a single state.
    latent = np.asarray(state.latent[0, 0])
    np.testing.assert_allclose(latent.mean(0), 0, atol=0.15)
    np.testing.assert_allclose(latent.std(0), 1, atol=0.1)
    shown, _, _ = mixture_at(world, state.latent)
    np.testing.assert_allclose(observation, shown, rtol=1e-4, atol=1e-4)


def test_a_world_never_ends_where_no_logged_episode_was_ended_by_the_system(start, actions):
    world = random_world(noise_logs((6, 3)))
    assert world.decoder.ending is None
    _, outcome = imagine(world, start, actions)
    np.testing.assert_array_equal(outcome.ending, 0.0)


def test_action_ids_are_seen_as_one_hot_vectors():
    world = random_world(noise_logs((6, 3), choices=3))
    np.testing.assert_array_equal(world.action_inputs(jnp.array([2, 0])), np.eye(3)[[2, 0]])
    np.testing.assert_array_equal(world.action_inputs(jnp.eye(3)), np.eye(3))


# Open-loop error


def test_the_open_loop_error_is_the_squared_error_of_predictions_under_logged_actions(world, episodes):
    window = WindowSource.of(episodes).cut(jnp.array([0, 1]), jnp.zeros(2, int), steps=4)
    error = eqx.filter_jit(open_loop_error)(world, window, key=KEY)
    _, outcome = imagine(world, window.observation[0], window.action)
    scale, reward_scale = np.asarray(world.observation.scale), np.asarray(world.reward.scale)
    states = (((outcome.observation - np.asarray(window.observation[1:])) / scale) ** 2).mean(-1)
    rewards = ((outcome.reward - np.asarray(window.reward)) / reward_scale) ** 2
    # The second episode has three steps: at the fourth, only the first one counts.
    expected = [[*part[:3].mean(1), part[3, 0]] for part in (states, rewards)]
    np.testing.assert_allclose(error.observation, expected[0], rtol=1e-4)
    np.testing.assert_allclose(error.reward, expected[1], rtol=1e-4)
    np.testing.assert_allclose(error.score, np.mean(expected[0]) + np.mean(expected[1]), rtol=1e-4)
