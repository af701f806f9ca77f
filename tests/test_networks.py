"""Layers against implementations written again in NumPy."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit

from vlbm.networks import (
    LSTM,
    MLP,
    BatchNorm,
    BernoulliHead,
    GaussianHead,
    LayerNorm,
    Linear,
    LSTMState,
    stacked,
)


@pytest.fixture(scope="module")
def inputs() -> jax.Array:
    return jax.random.normal(jax.random.key(1), (4, 3, 2)) * 2 + 1


@pytest.fixture(scope="module")
def valid() -> np.ndarray:
    """Of 4 steps of 3 windows: the second window ends after 2, the third after 1."""
    return np.arange(4)[:, None] < np.array([4, 2, 1])


def test_a_linear_layer_multiplies_and_adds(inputs):
    layer = eqx.tree_at(
        lambda layer: layer.bias, Linear(2, 5, random=np.random.default_rng(0)), jnp.arange(5.0)
    )
    np.testing.assert_allclose(
        layer(inputs), np.asarray(inputs) @ np.asarray(layer.weight) + np.arange(5), rtol=1e-5
    )


def test_layer_normalisation_gives_each_vector_mean_zero_and_variance_one():
    vectors = jax.random.normal(jax.random.key(0), (3, 50)) * jnp.array([[1.0], [10.0], [100.0]]) + 7
    normalised = np.asarray(LayerNorm(50)(vectors), np.float64)
    np.testing.assert_allclose(normalised.mean(-1), 0, atol=1e-5)
    np.testing.assert_allclose(normalised.var(-1), 1, rtol=1e-4)


def layer(outputs: int, *, bias: float = 0.0) -> Linear:
    """Inputs come out as they are, several times over where there are more outputs."""
    weight = jnp.tile(jnp.eye(2), (1, outputs // 2))
    plain = Linear(2, outputs, random=np.random.default_rng(0))
    return eqx.tree_at(lambda layer: (layer.weight, layer.bias), plain, (weight, jnp.full(outputs, bias)))


def test_batch_normalisation_takes_its_averages_over_the_valid_part(inputs, valid):
    norm = eqx.tree_at(
        lambda n: (n.gain, n.shift), BatchNorm(2), (jnp.array([2.0, 0.5]), jnp.array([1.0, -1]))
    )
    normalised, after = norm.train(layer(2, bias=3.0), inputs, jnp.asarray(valid))
    real = np.asarray(inputs, np.float64)[valid] + 3.0
    assert len(real) == 7
    expected = (real - real.mean(0)) / np.sqrt(real.var(0) + 1e-3) * [2.0, 0.5] + [1.0, -1.0]
    np.testing.assert_allclose(np.asarray(normalised)[valid], expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(after.mean, 0.01 * real.mean(0), rtol=1e-4)
    np.testing.assert_allclose(after.variance, 0.99 + 0.01 * real.var(0), rtol=1e-5)
    np.testing.assert_array_equal(after.gain, norm.gain)


def test_batch_normalisation_evaluates_with_its_running_averages(inputs):
    averages = (jnp.array([1.0, 2.0]), jnp.array([4.0, 0.25]))
    norm = eqx.tree_at(lambda n: (n.mean, n.variance), BatchNorm(2), averages)
    expected = (np.asarray(inputs) - [1.0, 2.0]) / np.sqrt(np.array([4.0, 0.25]) + 1e-3)
    np.testing.assert_allclose(norm.after(layer(2), inputs), expected, rtol=1e-5, atol=1e-6)
    shifted = expected + 3.0 / np.sqrt(np.array([4.0, 0.25]) + 1e-3)
    np.testing.assert_allclose(norm.after(layer(2, bias=3.0), inputs), shifted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [2, 8])
def test_batch_normalisation_survives_a_batch_without_a_valid_step(inputs, size):
    normalised, after = BatchNorm(size).train(layer(size), inputs, jnp.zeros((4, 3), bool))
    assert np.isfinite(normalised).all()
    np.testing.assert_allclose(after.mean, 0.0)


def test_running_averages_have_no_slope(inputs, valid):
    def loss(norm: BatchNorm) -> jax.Array:
        normalised, after = norm.train(layer(2), inputs, jnp.asarray(valid))
        called = norm.after(layer(2), inputs)
        return (normalised**3).sum() + (called**3).sum() + after.mean.sum() + after.variance.sum()

    gradient = jax.grad(loss)(BatchNorm(2))
    np.testing.assert_array_equal(gradient.mean, 0.0)
    np.testing.assert_array_equal(gradient.variance, 0.0)
    assert np.abs(gradient.gain).min() > 0


@pytest.mark.parametrize("normalisation", ["none", "layer"])
def test_training_without_batch_statistics_is_the_same_as_calling(inputs, valid, normalisation):
    mlp = MLP((2, 6, 4), normalisation=normalisation, random=np.random.default_rng(0))
    outputs, after = mlp.train(inputs, jnp.asarray(valid))
    np.testing.assert_array_equal(outputs, mlp(inputs))
    assert jax.tree.structure(after) == jax.tree.structure(mlp)
    for old, new in zip(jax.tree.leaves(mlp), jax.tree.leaves(after), strict=True):
        np.testing.assert_array_equal(old, new)


def test_an_mlp_rectifies_after_every_layer_the_last_included(inputs):
    mlp = MLP((2, 6, 4), normalisation="none", random=np.random.default_rng(0))
    features = np.asarray(inputs)
    for layer in mlp.layers:
        features = np.maximum(features @ np.asarray(layer.weight) + np.asarray(layer.bias), 0)
    np.testing.assert_allclose(mlp(inputs), features, rtol=1e-5, atol=1e-6)
    assert (features == 0).any()
    assert (features > 0).any()


def test_an_mlp_in_training_moves_the_averages_of_every_layer(inputs, valid):
    mlp = MLP((2, 6, 4), normalisation="batch", random=np.random.default_rng(0))
    outputs, after = mlp.train(inputs, jnp.asarray(valid))
    features = np.asarray(inputs, np.float64)
    for layer, norm in zip(mlp.layers, after.norms, strict=True):
        features = features @ np.asarray(layer.weight)
        real = features[valid]
        np.testing.assert_allclose(norm.mean, 0.01 * real.mean(0), rtol=1e-3, atol=1e-6)
        np.testing.assert_allclose(norm.variance, 0.99 + 0.01 * real.var(0), rtol=1e-4)
        features = np.maximum((features - real.mean(0)) / np.sqrt(real.var(0) + 1e-3), 0)
    np.testing.assert_allclose(np.asarray(outputs)[valid], features[valid], rtol=1e-3, atol=1e-4)


def test_a_gaussian_head_is_linear_in_the_mean_and_bounded_below_in_the_scale():
    head = GaussianHead(2, 3, floor=0.25, random=np.random.default_rng(0))
    features = np.array([[1.0, -2.0], [-300.0, 40.0], [300.0, -40.0]])
    outputs = features @ np.asarray(head.linear.weight)
    normal = head(jnp.asarray(features))
    np.testing.assert_allclose(normal.mean, outputs[:, :3], rtol=1e-5)
    np.testing.assert_allclose(normal.scale, np.logaddexp(0, outputs[:, 3:]) + 0.25, rtol=1e-5)
    assert normal.scale.min() >= 0.25


def test_a_bernoulli_head_starts_from_the_rate_in_the_data():
    head = BernoulliHead(2, base_rate=0.03, random=np.random.default_rng(0))
    np.testing.assert_allclose(head(jnp.zeros((5, 2))).probability, np.full(5, 0.03), rtol=1e-5)


def numpy_lstm(lstm: LSTM, inputs: np.ndarray, feedback: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Hochreiter and Schmidhuber's cell, gate by gate."""
    units = lstm.units
    kernel, bias = np.asarray(lstm.inputs.weight, np.float64), np.asarray(lstm.inputs.bias, np.float64)
    recurrent = np.asarray(lstm.recurrent.weight, np.float64)
    hidden = cell = np.zeros((inputs.shape[1], units))
    states = []
    for now, fed in zip(inputs, feedback, strict=True):

        def gate(position: int, now=now, fed=fed, hidden=hidden) -> np.ndarray:
            part = slice(position * units, (position + 1) * units)
            return (
                now @ kernel[:, part]
                + bias[part]
                + hidden @ recurrent[:units, part]
                + fed @ recurrent[units:, part]
            )

        enter, forget, candidate, leave = expit(gate(0)), expit(gate(1)), np.tanh(gate(2)), expit(gate(3))
        cell = forget * cell + enter * candidate
        hidden = leave * np.tanh(cell)
        states.append((hidden, cell))
    return states


def test_the_lstm_equals_one_written_again_gate_by_gate(inputs):
    lstm = LSTM(2, 5, feedback=3, random=np.random.default_rng(2))
    feedback = jax.random.normal(jax.random.key(3), (4, 3, 3))
    state, step = lstm.zero((3,)), eqx.filter_jit(LSTM.step)
    expected = numpy_lstm(lstm, np.asarray(inputs), np.asarray(feedback))
    for now, fed, (hidden, cell) in zip(inputs, feedback, expected, strict=True):
        state = step(lstm, state, fed, now)
        np.testing.assert_allclose(state.hidden, hidden, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(state.cell, cell, rtol=1e-4, atol=1e-6)


def test_the_lstm_starts_with_an_open_forget_gate():
    lstm = LSTM(2, 5, random=np.random.default_rng(2))
    np.testing.assert_array_equal(np.asarray(lstm.inputs.bias).reshape(4, 5).sum(1), [0, 5, 0, 0])
    kept = lstm.step(LSTMState(jnp.zeros((1, 5)), jnp.ones((1, 5))), jnp.zeros((1, 2)))
    np.testing.assert_allclose(kept.cell, np.full((1, 5), expit(1.0)), rtol=1e-6)


@pytest.mark.parametrize("stack", [(), (3,)])
def test_layers_do_the_same_where_a_batch_lies_in_columns(stack):
    random = np.random.default_rng(0)
    for make in (lambda: Linear(5, 4, random=random), lambda: LayerNorm(5)):
        layers = [make() for _ in range(3)]
        layers = [jax.tree.map(lambda leaf: leaf + random.normal(size=leaf.shape), layer) for layer in layers]
        inputs = jnp.asarray(random.normal(size=(*stack, 7, 5)), jnp.float32)
        layer = stacked(layers) if stack else layers[0]
        rows = jax.vmap(lambda one, batch: one(batch))(layer, inputs) if stack else layer(inputs)
        columns = layer.columns(jnp.swapaxes(inputs, -1, -2))
        np.testing.assert_allclose(jnp.swapaxes(columns, -1, -2), rows, rtol=1e-4, atol=1e-5)
