"""The objective, term by term, against one written again in NumPy with loops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import bernoulli, norm

from systems import bits, distance, noise_logs, random_world
from vlbm.episodes import Episodes
from vlbm.models.branching import BranchingModel
from vlbm.models.objective import evidence_lower_bound, objective
from vlbm.models.terms import Weighting
from vlbm.networks import running_averages
from vlbm.windows import Window, WindowSource

LENGTHS = (4, 1, 2)
STEPS = 4


@pytest.fixture(scope="module")
def episodes() -> Episodes:
    return noise_logs(LENGTHS, terminated=(False, True, True))


@pytest.fixture(scope="module")
def window(episodes) -> Window:
    """All episodes, the shorter ones padded."""
    return WindowSource.of(episodes).cut(jnp.arange(3), jnp.zeros(3, int), steps=STEPS)


@pytest.fixture
def without_noise(monkeypatch):
    """Every sample is its mean, so that a second implementation can tell the exact answer."""
    monkeypatch.setattr(jax.random, "normal", lambda key, shape=(), *rest: jnp.zeros(shape))


# The second implementation: one episode, one branch, one step at a time, in double precision.


def pick(tree: Any, index: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[index], tree)


def dense(layer: Any, inputs: np.ndarray) -> np.ndarray:
    return inputs @ layer.weight + layer.bias


def hidden_layers(mlp: Any, inputs: np.ndarray) -> np.ndarray:
    for layer in mlp.layers:
        inputs = np.maximum(dense(layer, inputs), 0)
    return inputs


def gaussian(head: Any, features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    mean, spread = np.split(dense(head.linear, features), 2)
    return mean, np.logaddexp(0, spread) + head.floor


def recur(lstm: Any, state: tuple, inputs: np.ndarray, *feedback: np.ndarray) -> tuple:
    hidden, cell = state
    gates = dense(lstm.inputs, inputs) + np.concatenate([hidden, *feedback]) @ lstm.recurrent.weight
    enter, forget, candidate, leave = np.split(gates, 4)
    cell = expit(forget) * cell + expit(enter) * np.tanh(candidate)
    return expit(leave) * np.tanh(cell), cell


def divergence(first: tuple, second: tuple) -> float:
    (mean, scale), (other_mean, other_scale) = first, second
    ratio = scale / other_scale
    return float((0.5 * (ratio**2 + ((mean - other_mean) / other_scale) ** 2 - 1) - np.log(ratio)).sum())


class Emitted:
    """What one branch says at one latent."""

    def __init__(self, decoder: Any, latent: np.ndarray):
        self.state = gaussian(decoder.observation_head, hidden_layers(decoder.observation, latent))
        self.reward = gaussian(decoder.reward_head, hidden_layers(decoder.reward, latent))
        self.ending = expit(dense(decoder.ending_head.linear, hidden_layers(decoder.ending, latent)))[0]


def reference(model: BranchingModel, episodes: Episodes, weighting: Weighting) -> dict[str, np.ndarray]:
    """Every term of every branch and episode, summed over the steps that the episode really has."""
    model = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), model)
    weight = model.weight_root**2 / (model.weight_root**2).sum()
    names = ("reconstruction", "initial_divergence", "divergence", "alignment", "ending")
    out = {name: np.zeros((model.branches, episodes.count)) for name in names}
    out |= {"mixture": np.zeros(episodes.count), "mixture_ending": np.zeros(episodes.count)}
    for index, length in enumerate(episodes.length):
        row, step = episodes.first_observation[index], episodes.first_step[index]
        states = (
            episodes.observation[row : row + length + 1] - model.observation.mean
        ) / model.observation.scale
        rewards = (episodes.reward[step : step + length] - model.reward.mean) / model.reward.scale
        actions = (episodes.action[step : step + length] - model.action.mean) / model.action.scale
        ended = np.arange(length) == (length - 1 if episodes.terminated[index] else -1)
        predictions = []
        for branch in range(model.branches):
            encoder = pick(model.encoder, 0 if model.shared_encoder else branch)
            decoder = pick(model.decoder, branch)
            posterior = [gaussian(encoder.initial_head, hidden_layers(encoder.initial, states[0]))]
            own = [posterior[0][0]]
            above = below = (np.zeros(encoder.lstm.units), np.zeros(encoder.lstm.units))
            out["initial_divergence"][branch, index] = divergence(posterior[0], (0.0, 1.0))
            for time in range(length):
                latent = posterior[-1][0]
                inputs = np.concatenate([actions[time], states[time + 1]])
                above = recur(encoder.lstm, above, inputs, latent)
                posterior.append(gaussian(encoder.head, np.maximum(dense(encoder.dense, above[0]), 0)))
                below = recur(decoder.lstm, below, np.concatenate([latent, actions[time]]))
                aligned = hidden_layers(decoder.alignment, below[0])
                features = np.maximum(dense(decoder.dense, aligned), 0)
                transition = gaussian(decoder.transition_head, features)
                own.append(transition[0])
                out["divergence"][branch, index] += divergence(posterior[-1], transition)
                out["alignment"][branch, index] += distance(aligned - above[0], weighting.alignment)
            said = [Emitted(decoder, mean) for mean, _ in posterior]
            out["reconstruction"][branch, index] = sum(
                norm.logpdf(state, *emitted.state).sum() for state, emitted in zip(states, said, strict=True)
            ) + sum(
                norm.logpdf(reward, *emitted.reward).sum()
                for reward, emitted in zip(rewards, said[1:], strict=True)
            )
            out["ending"][branch, index] = sum(
                bernoulli.logpmf(end, emitted.ending) for end, emitted in zip(ended, said[1:], strict=True)
            )
            predictions.append(
                [Emitted(decoder, latent) for latent in own] if weighting.mixture == "branches" else said
            )
        for time in range(length + 1):
            now = [prediction[time] for prediction in predictions]
            out["mixture"][index] += norm.logpdf(
                states[time], *consensus(weight, [x.state for x in now])
            ).sum()
            if time:
                law = consensus(weight, [x.reward for x in now])
                out["mixture"][index] += norm.logpdf(rewards[time - 1], *law).sum()
                probability = sum(w * x.ending for w, x in zip(weight, now, strict=True))
                out["mixture_ending"][index] += bernoulli.logpmf(ended[time - 1], probability)
    return out


def consensus(weight: np.ndarray, normals: list[tuple]) -> tuple[np.ndarray, np.ndarray]:
    mean = sum(w * mean for w, (mean, _) in zip(weight, normals, strict=True))
    variance = sum(w**2 * scale**2 for w, (_, scale) in zip(weight, normals, strict=True))
    return mean, np.sqrt(variance)


CASES = {
    "the branches' own predictions": ({}, Weighting()),
    "an encoder for every branch": ({"shared_encoder": False}, Weighting(alignment="mse", mixture="encoder")),
    "bounds alone": ({}, Weighting(alignment="none", mixture="none")),
}


@pytest.mark.usefixtures("without_noise")
@pytest.mark.parametrize("case", CASES)
def test_every_term_equals_the_one_computed_by_loops(episodes, window, case):
    settings, weighting = CASES[case]
    model = random_world(episodes, **settings)
    terms = eqx.filter_jit(lambda model: objective(model, window, weighting, key=jax.random.key(0)))(
        model
    ).terms
    expected = reference(model, episodes, weighting)
    steps = sum(LENGTHS)
    for name in ("reconstruction", "initial_divergence", "divergence", "alignment"):
        np.testing.assert_allclose(
            getattr(terms, name), expected[name].sum() / steps, rtol=1e-4, err_msg=name
        )
    mixes = weighting.mixture != "none"
    ending = expected["ending"].sum() + mixes * expected["mixture_ending"].sum()
    np.testing.assert_allclose(terms.ending, ending / steps, rtol=1e-4)
    np.testing.assert_allclose(terms.mixture, mixes * expected["mixture"].sum() / steps, rtol=1e-4)
    assert (terms.alignment == 0) == (weighting.alignment == "none")


@pytest.mark.usefixtures("without_noise")
def test_the_bound_is_in_raw_units_for_every_branch_and_episode(episodes, window):
    model = random_world(episodes)
    bound = eqx.filter_jit(lambda model: evidence_lower_bound(model, window, key=jax.random.key(0)))(model)
    expected = reference(model, episodes, Weighting(alignment="none", mixture="none"))
    states, rewards = episodes.observation.std(0), episodes.reward.std()
    stretch = (np.array(LENGTHS) + 1) * np.log(states).sum() + np.array(LENGTHS) * np.log(rewards)
    exact = expected["reconstruction"] - expected["initial_divergence"] - expected["divergence"] - stretch
    np.testing.assert_allclose(bound, exact, rtol=1e-4)


def test_the_gradient_is_the_slope_of_the_objective(episodes, window):
    def widened(tree: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf if leaf.dtype == bool else jnp.asarray(leaf, jnp.float64), tree)

    weighting = Weighting(mixture="encoder")
    with jax.enable_x64(True):
        model, wide = widened(random_world(episodes, head_units=(6,))), widened(window)

        @eqx.filter_jit
        @eqx.filter_value_and_grad
        def total(model: BranchingModel) -> jax.Array:
            return objective(model, wide, weighting, key=jax.random.key(0)).total

        _, gradient = total(model)
        draw = np.random.default_rng(0).normal
        for part in ("encoder", "decoder", "weight_root"):
            here = getattr(model, part)
            way = jax.tree.map(lambda leaf: 1e-6 * draw(size=leaf.shape), here)
            ahead, _ = total(replace(model, **{part: jax.tree.map(np.add, here, way)}))
            behind, _ = total(replace(model, **{part: jax.tree.map(np.subtract, here, way)}))
            rises = jax.tree.map(lambda slope, step: (slope * step).sum(), getattr(gradient, part), way)
            np.testing.assert_allclose((ahead - behind) / 2, sum(jax.tree.leaves(rises)), rtol=1e-5)


# Padding


def with_padding(window: Window, value: float) -> Window:
    """The same window with `value` wherever there is no step."""

    def padded(part: jax.Array, keep: jax.Array) -> jax.Array:
        return jnp.where(keep.reshape(*keep.shape, *[1] * (part.ndim - keep.ndim)), part, value)

    return Window(
        observation=padded(window.observation, window.observed),
        action=padded(window.action, window.valid),
        reward=padded(window.reward, window.valid),
        ended=padded(window.ended, window.valid),
        valid=window.valid,
    )


def everything(model: BranchingModel, window: Window, weighting: Weighting) -> tuple[Any, ...]:
    def loss(model: BranchingModel) -> tuple[jax.Array, Any]:
        total, terms, moved = objective(model, window, weighting, key=jax.random.key(0))
        return total, (terms, moved)

    (_, (terms, moved)), gradient = eqx.filter_value_and_grad(loss, has_aux=True)(model)
    return terms, gradient, moved


@pytest.mark.parametrize("normalisation", ["none", "batch"])
def test_padding_changes_no_bit_of_any_term_gradient_or_running_average(episodes, window, normalisation):
    model = random_world(episodes, head_units=(6,), normalisation=normalisation)
    compute = eqx.filter_jit(lambda window: everything(model, window, Weighting()))
    terms, gradient, moved = compute(with_padding(window, 0.0))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((terms, gradient, moved)))
    assert bits(moved) != bits(model) or normalisation == "none"
    for value in (1e6, -3e3):
        other = compute(with_padding(window, value))
        assert bits(other[0]) == bits(terms), f"terms, padding {value}"
        assert bits(other[1]) == bits(gradient), f"gradient, padding {value}"
        assert bits(other[2]) == bits(moved), f"running averages, padding {value}"
    if normalisation == "none":
        # Zero times infinity is not zero, so slopes and batch statistics need padding that is finite.
        for value in (np.nan, np.inf):
            assert bits(compute(with_padding(window, value))[0]) == bits(terms), f"terms, padding {value}"
    assert bits(compute(replace(window, reward=window.reward + 1))[0]) != bits(terms)


# Pieces


@pytest.fixture(scope="module")
def long_window(episodes) -> Window:
    """Too long to be unrolled, and of a length that cannot be cut evenly."""
    return WindowSource.of(episodes).cut(jnp.arange(3), jnp.zeros(3, int), steps=STEPS + 3)


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=[pytest.mark.slow] if place else []) for place, case in enumerate(CASES)],
)
def test_a_window_in_pieces_has_the_terms_and_slopes_of_the_whole(episodes, long_window, case, monkeypatch):
    settings, weighting = CASES[case]
    model = random_world(episodes, head_units=(6,), **settings)
    results = []
    for piece in (STEPS + 3, 2):
        monkeypatch.setattr("vlbm.models.objective.PIECE", piece)
        results.append(eqx.filter_jit(lambda: everything(model, long_window, weighting))())
    largest = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(results[0][1]))
    for whole, pieces in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_allclose(pieces, whole, rtol=1e-4, atol=1e-6 * largest)


@pytest.mark.slow
def test_padding_changes_no_bit_of_pieces_with_batch_normalisation(episodes, long_window, monkeypatch):
    monkeypatch.setattr("vlbm.models.objective.PIECE", 2)
    model = random_world(episodes, head_units=(6,), normalisation="batch")
    compute = eqx.filter_jit(lambda window: everything(model, window, Weighting()))
    expected = compute(with_padding(long_window, 0.0))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(expected))
    assert bits(compute(with_padding(long_window, 1e6))) == bits(expected)


@pytest.mark.slow
def test_running_averages_are_those_of_the_pieces_weighed_by_their_steps(episodes, window, monkeypatch):
    model = random_world(episodes, head_units=(6,), normalisation="batch")
    weighting = Weighting(mixture="none")
    monkeypatch.setattr("vlbm.models.objective.PIECE", 2)
    found = objective(model, window, weighting, key=jax.random.key(0)).model.decoder.reward.norms[0]
    monkeypatch.undo()
    assert found.mean.shape == (3, 6)
    whole = objective(model, window, weighting, key=jax.random.key(0)).model.decoder.reward.norms[0]
    # The mean of means, each weighed by its steps, is the mean of all.
    np.testing.assert_allclose(found.mean, whole.mean, rtol=1e-4, atol=1e-6)
    # What pieces differ by is not in the variance of any.
    assert (found.variance <= whole.variance + 1e-6).all()
    assert (found.variance < whole.variance).any()


# Groups


@pytest.mark.usefixtures("without_noise")
def test_a_group_of_windows_is_normalised_by_itself(episodes, monkeypatch):
    model = random_world(episodes, head_units=(6,), normalisation="batch")
    source, begin = WindowSource.of(episodes), jnp.zeros(2, int)
    pairs = [source.cut(jnp.asarray(pair), begin, steps=STEPS) for pair in ([0, 1], [2, 0])]
    batch = jax.tree.map(lambda *leaves: jnp.concatenate(leaves, axis=1), *pairs)
    judge = eqx.filter_jit(partial(objective, model, weighting=Weighting(), key=jax.random.key(0)))
    steps = np.array([pair.valid.sum() for pair in pairs])
    assert steps[0] != steps[1]
    monkeypatch.setattr("vlbm.devices.SMALLEST_GROUP", 2)
    grouped, *apart = (judge(window) for window in (batch, *pairs))

    def check(part: Callable[[Any], Any], weight: np.ndarray) -> None:
        found, *each = (jax.tree.leaves(part(judged)) for judged in (grouped, *apart))
        assert found
        for mine, *others in zip(found, *each, strict=True):
            expected = np.tensordot(weight / weight.sum(), np.stack(others), axes=1)
            np.testing.assert_allclose(mine, expected, rtol=1e-4, atol=1e-5)

    check(lambda judged: judged.terms, steps)
    check(lambda judged: running_averages(judged.model.decoder), steps)
    # First observations are one to a window, and windows are as many in one group as in the other.
    check(lambda judged: running_averages(judged.model.encoder), np.ones(2))


# One branch


def test_the_mixture_of_one_branch_at_the_encoders_latents_is_its_reconstruction(episodes, window):
    model = random_world(episodes, branches=1)
    terms = eqx.filter_jit(
        lambda: objective(model, window, Weighting(mixture="encoder"), key=jax.random.key(0)).terms
    )()
    np.testing.assert_allclose(terms.mixture, terms.reconstruction, rtol=1e-6)
