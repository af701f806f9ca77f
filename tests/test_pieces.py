"""A sum over pieces and its gradient, against the same sum taken at once."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vlbm.pieces import cut, summed

STEPS, BATCH = 7, 4


def score(shared, traced, given):
    """Steps on their own, and the latents that follow from each other or from what was before."""
    latent, hidden = traced
    target, valid = given
    start = len(latent) - len(hidden)
    errors = (jnp.tanh(hidden @ shared["weight"]) + latent[start:] - target) ** 2 / (1 + latent[start:] ** 2)
    total = jnp.where(valid, errors.sum(-1), 0.0).sum() + (latent[:start] ** 3).sum()
    return total, {"steps": valid.sum()}


@pytest.fixture(scope="module")
def inputs():
    random = np.random.default_rng(0)
    shapes = ((STEPS + 1, BATCH, 2), (STEPS, BATCH, 4), (STEPS, BATCH, 2))
    latent, hidden, target = (jnp.asarray(random.normal(size=shape), jnp.float32) for shape in shapes)
    valid = jnp.asarray(random.random((STEPS, BATCH)) < 0.8)
    return {"weight": jnp.asarray(random.normal(size=(4, 2)), jnp.float32)}, (latent, hidden), (target, valid)


@pytest.mark.parametrize(("count", "groups"), [(2, 1), (3, 1), (4, 1), (7, 1), (3, 2), (1, 4)])
def test_the_sum_and_its_gradient_are_those_taken_at_once(inputs, count, groups):
    shared, traced, given = inputs

    def loss(way, shared, traced):
        # A factor that is not one: gradients are known up to it before it is known itself.
        return jnp.sin(way(shared, traced)[0])

    def in_pieces(shared, traced):
        return summed(score, count, groups, shared, traced, given)

    def at_once(shared, traced):
        return score(shared, traced, given)

    slope = jax.jit(jax.value_and_grad(loss, argnums=(1, 2)), static_argnums=0)
    found, expected = slope(in_pieces, shared, traced), slope(at_once, shared, traced)
    for mine, plain in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_allclose(mine, plain, rtol=1e-4, atol=1e-5)
    assert np.abs(found[1][1][0][0]).min() > 0  # what was before the first step counts too


def test_every_piece_gives_what_else_it_has(inputs):
    shared, traced, given = inputs
    _, more = summed(score, 3, 1, shared, traced, given)
    valid = np.asarray(given[1])
    np.testing.assert_array_equal(more["steps"], [valid[:3].sum(), valid[3:6].sum(), valid[6:].sum()])
    assert more["steps"].sum() == valid.sum()


def test_groups_of_windows_are_pieces_of_their_own(inputs):
    shared, traced, given = inputs
    _, more = summed(score, 2, 2, shared, traced, given)
    valid = np.asarray(given[1])
    parts = [valid[:4, :2], valid[:4, 2:], valid[4:, :2], valid[4:, 2:]]
    np.testing.assert_array_equal(more["steps"], [part.sum() for part in parts])


def test_steps_beyond_the_last_are_not_valid_and_repeat_it():
    pieces = cut((jnp.arange(5.0) + 1, jnp.ones(4, bool)), 3)
    assert pieces.first()[0].tolist() == [1, 2, 3]
    later = [pieces.later(jnp.asarray(index)) for index in (1, 2)]
    assert [piece[0].tolist() for piece in later] == [[4, 5], [5, 5]]
    assert [piece[1].tolist() for piece in later] == [[True, True], [False, False]]


def test_what_is_written_to_a_piece_is_read_from_it_and_from_no_other():
    pieces = cut((jnp.arange(5.0), jnp.arange(4.0)), 2)
    changed = pieces.with_first((jnp.array([7.0, 8, 9]), jnp.array([5.0, 6]))).with_later(
        jnp.asarray(1), (jnp.array([1.0, 2]), jnp.array([3.0, 4]))
    )
    assert [leaf.tolist() for leaf in changed.whole] == [[7, 8, 9, 1, 2], [5, 6, 3, 4]]
