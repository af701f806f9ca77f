"""Layers and batch statistics against NumPy, and how networks start."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit

from vlbm.nn.batch_norm import BatchNorm, Moments, Over, average_over_time, update_averages
from vlbm.nn.layers import MLP, BernoulliMLP, GaussianMLP, LayerKind, Linear, LSTMCell
from vlbm.nn.optimiser import hidden_weights

EXAMPLES, SIZE = 9, 4
KEY = jax.random.key(0)
VALID = jnp.array([True, True, False, True, False, True, True, False, True])
REAL = np.asarray(VALID)


@pytest.fixture(scope="module")
def inputs() -> jax.Array:
    # Far from the origin: variances must not be differences of large numbers.
    return jnp.asarray(np.random.default_rng(0).normal(size=(EXAMPLES, SIZE)) * 2 + 100.0, jnp.float32)


@pytest.fixture(scope="module")
def norm() -> BatchNorm:
    random = np.random.default_rng(1)
    values = [jnp.asarray(random.uniform(0.5, 2.0, SIZE), jnp.float32) for _ in range(4)]
    return eqx.tree_at(lambda n: (n.gain, n.shift, n.mean, n.variance), BatchNorm(SIZE), values)


@eqx.filter_jit
def over_batch(network: Any, x: jax.Array, valid: jax.Array) -> tuple[Any, Any]:
    def one(x: jax.Array, valid: jax.Array) -> tuple[Any, Any]:
        return network(x, Over(valid, ("batch",)))

    return jax.vmap(one, axis_name="batch", out_axes=(0, None))(x, valid)


# Batch normalisation


def test_examples_are_normalised_by_the_mean_and_variance_of_those_that_count(norm, inputs):
    outputs, moments = over_batch(norm, inputs, VALID)
    real = np.asarray(inputs, np.float64)[REAL]
    deviation = (np.asarray(inputs) - real.mean(0)) / np.sqrt(real.var(0) + 1e-3)
    np.testing.assert_allclose(outputs, deviation * norm.gain + norm.shift, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(moments.mean, real.mean(0), rtol=1e-6)
    np.testing.assert_allclose(moments.variance, real.var(0), rtol=1e-4)
    np.testing.assert_allclose(moments.examples, 6.0)


@pytest.mark.parametrize("junk", [1e6, -3e3])
def test_examples_that_do_not_count_change_neither_the_others_nor_their_slopes(norm, inputs, junk):
    def loss(norm: BatchNorm, x: jax.Array) -> tuple[jax.Array, Any]:
        outputs, moments = over_batch(norm, x, VALID)
        return jnp.where(VALID[:, None], jnp.sin(outputs), 0.0).sum(), (outputs[REAL], moments)

    spoiled = jnp.where(VALID[:, None], inputs, junk)
    slope = jax.grad(loss, argnums=(0, 1), has_aux=True)
    for before, after in zip(*(jax.tree.leaves(slope(norm, x)) for x in (inputs, spoiled)), strict=True):
        np.testing.assert_allclose(before, after, rtol=1e-4, atol=1e-5)


def test_a_second_axis_is_normalised_over_together_with_the_first(norm, inputs):
    both = jnp.stack([inputs, 2 * inputs])
    one = lambda x: norm(x, Over(jnp.array(True), ("batch", "time")))[0]  # noqa: E731
    found = jax.vmap(jax.vmap(one, axis_name="time"), axis_name="batch")(both)
    flat, _ = over_batch(norm, both.reshape(-1, SIZE), jnp.ones(2 * EXAMPLES, bool))
    np.testing.assert_allclose(found.reshape(-1, SIZE), flat, rtol=1e-4, atol=1e-4)


def test_outside_training_running_averages_normalise(norm, inputs):
    outputs, moments = norm(inputs[0], None)
    expected = (np.asarray(inputs[0]) - norm.mean) / np.sqrt(norm.variance + 1e-3) * norm.gain + norm.shift
    np.testing.assert_allclose(outputs, expected, rtol=1e-5)
    assert moments is None


def test_a_batch_in_which_nothing_counts_gives_numbers(norm, inputs):
    outputs, moments = over_batch(norm, inputs, jnp.zeros(EXAMPLES, bool))
    assert np.isfinite(outputs).all()
    np.testing.assert_array_equal(moments.examples, 0.0)


def test_running_averages_move_by_a_hundredth_and_nothing_else_does(norm):
    moved = norm.update(Moments(jnp.full(SIZE, 5.0), jnp.full(SIZE, 7.0), jnp.array(3.0)))
    np.testing.assert_allclose(moved.mean, 0.99 * norm.mean + 0.05, rtol=1e-5)
    np.testing.assert_allclose(moved.variance, 0.99 * norm.variance + 0.07, rtol=1e-5)
    np.testing.assert_array_equal(moved.gain, norm.gain)
    np.testing.assert_array_equal(moved.shift, norm.shift)


def test_moments_of_steps_are_weighed_by_how_many_examples_each_counted():
    steps = Moments(
        jnp.array([[1.0], [5.0], [9.0]]), jnp.array([[2.0], [4.0], [8.0]]), jnp.array([3.0, 1.0, 0.0])
    )
    mean, variance, count = average_over_time(steps)
    np.testing.assert_allclose((mean, variance), ([2.0], [2.5]))
    assert count == 4.0


def test_every_layer_is_moved_by_its_own_moments(inputs):
    mlp = MLP((SIZE, 5, 3, 2), LayerKind(normalisation="batch"), key=KEY)
    _, moments = over_batch(mlp, inputs, VALID)
    moved = update_averages(mlp, moments)
    x = np.asarray(inputs, np.float64)
    for layer, after in zip(mlp.layers, moved.layers, strict=True):
        x = x @ np.asarray(layer.hidden.weight).T
        mean, variance = x[REAL].mean(0), x[REAL].var(0)
        np.testing.assert_allclose(after.norm.mean, 0.01 * mean, rtol=1e-3, atol=1e-6)
        np.testing.assert_allclose(after.norm.variance, 0.99 + 0.01 * variance, rtol=1e-3)
        x = (x - mean) / np.sqrt(variance + 1e-3)
        x = x * expit(x)
        np.testing.assert_array_equal(layer.hidden.weight, after.hidden.weight)


def test_moments_of_other_layers_than_there_are_are_refused(norm):
    with pytest.raises(ValueError, match="shorter"):
        update_averages([norm, norm], [Moments(norm.mean, norm.variance, jnp.array(1.0))])


def test_a_module_that_normalises_nothing_is_left_as_it_is():
    mlp = MLP((SIZE, 3, 2), LayerKind(), key=KEY)
    moved = update_averages(mlp, mlp(jnp.ones(SIZE))[1])
    for before, after in zip(jax.tree.leaves(mlp), jax.tree.leaves(moved), strict=True):
        np.testing.assert_array_equal(before, after)


# Networks


@pytest.mark.parametrize("activation", ["silu", "relu"])
def test_an_mlp_bends_after_every_layer_but_the_last(inputs, activation):
    mlp = MLP((SIZE, 6, 5, 3), LayerKind(activation=activation), key=KEY)
    bend = (lambda x: x * expit(x)) if activation == "silu" else (lambda x: np.maximum(x, 0))
    x = np.asarray(inputs[0] - 100.0, np.float64)
    for layer in mlp.layers:
        x = bend(np.asarray(layer.hidden.weight) @ x)
    np.testing.assert_allclose(
        mlp(inputs[0] - 100.0)[0], np.asarray(mlp.last.weight) @ x, rtol=1e-3, atol=1e-5
    )


@pytest.mark.parametrize("spread", ["scale", "variance"])
def test_a_gaussian_network_is_linear_in_the_mean_and_bounded_below_in_its_spread(spread):
    network = GaussianMLP((2, 5, 3), LayerKind(spread=spread, floor=0.25), key=KEY)
    for x in (jnp.array([1.0, -2.0]), jnp.array([-300.0, 40.0]), jnp.array([300.0, -40.0])):
        mean, raw = np.split(np.asarray(network.mlp(x)[0], np.float64), 2)
        normal, _ = network(x)
        np.testing.assert_allclose(normal.mean, mean, rtol=1e-5)
        positive = np.logaddexp(0, raw) + 0.25
        expected = np.sqrt(positive) if spread == "variance" else positive
        np.testing.assert_allclose(normal.scale, expected, rtol=1e-5)


def test_a_bernoulli_network_starts_from_the_rate_in_the_data():
    network = BernoulliMLP((2, 5), LayerKind(), base_rate=0.03, key=KEY)
    silent = eqx.tree_at(lambda network: network.mlp.last.weight, network, jnp.zeros((1, 5)))
    np.testing.assert_allclose(silent(jnp.ones(2))[0].probability, 0.03, rtol=1e-5)


def test_linear_layers_start_with_weights_that_keep_the_size_of_what_comes_in():
    layer = Linear(200, 300, key=KEY)
    np.testing.assert_allclose(np.asarray(layer.weight).std(), 200**-0.5, rtol=0.02)
    np.testing.assert_array_equal(layer.bias, 0.0)


def test_the_lstm_equals_one_written_again_gate_by_gate():
    lstm, units = LSTMCell(3, 5, key=KEY), 5
    random = np.random.default_rng(2)
    hidden = cell = np.zeros(units)
    state = (jnp.zeros(units), jnp.zeros(units))
    for x in random.normal(size=(3, 3)):
        gates = np.asarray(lstm.weight_ih) @ x + np.asarray(lstm.weight_hh) @ hidden + np.asarray(lstm.bias)
        enter, forget, candidate, leave = np.split(gates, 4)
        cell = expit(forget) * cell + expit(enter) * np.tanh(candidate)
        hidden = expit(leave) * np.tanh(cell)
        state = lstm(jnp.asarray(x, jnp.float32), state)
        np.testing.assert_allclose(state[0], hidden, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(state[1], cell, rtol=1e-4, atol=1e-6)


def test_the_lstms_forget_gates_start_open():
    lstm = LSTMCell(2, 5, key=KEY)
    np.testing.assert_array_equal(np.asarray(lstm.bias).reshape(4, 5).sum(1), [0, 5, 0, 0])
    still = eqx.tree_at(lambda cell: cell.weight_ih, lstm, jnp.zeros((20, 2)))
    _, cell = still(jnp.zeros(2), (jnp.zeros(5), jnp.ones(5)))
    np.testing.assert_allclose(cell, np.full(5, expit(1.0)), rtol=1e-6)


# Weight decay


def test_weights_of_hidden_layers_alone_decay():
    kind = LayerKind(normalisation="batch")
    tree = {
        "gaussian": GaussianMLP((2, 5, 4, 3), kind, key=KEY),
        "bernoulli": BernoulliMLP((2, 5), kind, base_rate=0.1, key=KEY),
        "lstm": LSTMCell(2, 5, key=KEY),
    }
    decays = hidden_weights(eqx.filter(tree, eqx.is_inexact_array))
    paths, chosen = zip(*jax.tree_util.tree_flatten_with_path(decays)[0], strict=True)
    names = {jax.tree_util.keystr(path) for path, yes in zip(paths, chosen, strict=True) if yes}
    assert names == {
        "['gaussian'].mlp.layers[0].hidden.weight",
        "['gaussian'].mlp.layers[1].hidden.weight",
        "['bernoulli'].mlp.layers[0].hidden.weight",
    }
    assert len(chosen) > 10
