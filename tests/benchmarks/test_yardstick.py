"""The eager yardstick is the same model: same weights, same numbers, same gradients."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from plain_rollout import PlainModel, imagine_plainly, plain_policy
from shapes import architecture, make_world, paper_settings, starts, tanh_policies, with_alive
from yardstick import Yardstick
from yardstick_rollout import Imagined, imagine

from vlbm.episodes import Episodes
from vlbm.models.objective import objective
from vlbm.rollout import rollout
from vlbm.windows import Window

SMALL = {"branches": 3, "latents": 4, "units": 8, "head_units": (12, 6)}

pytestmark = pytest.mark.slow  # two frameworks compile and compute


def stirred(world):
    """Every array moved a little, so that none is a zero or a one that hides where it belongs."""
    random = np.random.default_rng(0)

    def stir(leaf):
        return leaf + jnp.asarray(random.uniform(0.01, 0.2, leaf.shape), jnp.float32)

    networks = jax.tree.map(stir, (world.encoder, world.decoder, world.weight_root))
    # PyTorch has two biases where vlbm has one: the second is not used and must stay at zero.
    moved = eqx.tree_at(lambda tree: (tree.encoder, tree.decoder, tree.weight_root), world, networks)
    return eqx.tree_at(
        lambda tree: (tree.encoder.lstm.recurrent.bias, tree.decoder.lstm.recurrent.bias),
        moved,
        replace_fn=jnp.zeros_like,
    )


@pytest.mark.parametrize("normalisation", ["none", "batch"])
def test_it_has_as_many_parameters_as_vlbm(normalisation):
    settings = paper_settings(normalisation=normalisation)
    world = make_world(settings)
    yardstick = Yardstick(architecture(settings), settings.branches)
    held = sum(leaf.size for leaf in jax.tree.leaves((world.encoder, world.decoder, world.weight_root)))
    scaling = sum(leaf.size for leaf in jax.tree.leaves((world.observation, world.reward, world.action)))
    assert sum(value.numel() for value in yardstick.state_dict().values()) == held + scaling


def test_their_roll_outs_give_the_same_numbers():
    settings = paper_settings(**SMALL, sampling="none")
    world = with_alive(stirred(make_world(settings)), 2)
    policies, start = tanh_policies(3, units=(16, 16)), starts(5)
    expected = rollout(world, policies, start=start, episodes=5, horizon=6, key=jax.random.key(0))
    model = Yardstick(architecture(settings), settings.branches).load(world)
    tuned = imagine(model, list(policies.values()), start, horizon=6, random=False)
    acting = [plain_policy(policy) for policy in policies.values()]
    plain = imagine_plainly(PlainModel(world), acting, start, horizon=6, random=False)
    for found in (tuned, plain):
        check_same(expected, found)


def check_same(expected: dict[str, Episodes], found: Imagined) -> None:
    for index, episodes in enumerate(expected.values()):
        for ours, theirs in (
            (episodes.reward.reshape(5, 6), found.reward[:, index].T),
            (episodes.action.reshape(5, 6, -1), found.action[:, index].swapaxes(0, 1)),
            (episodes.observation.reshape(5, 7, -1)[:, 1:], found.observation[:, index].swapaxes(0, 1)),
        ):
            np.testing.assert_allclose(theirs.numpy(), ours, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("normalisation", "mixture"), [("batch", "branches"), ("none", "encoder")], ids=["paper", "default"]
)
def test_its_loss_and_gradients_are_the_same(normalisation, mixture, monkeypatch):
    settings = paper_settings(**SMALL, normalisation=normalisation, mixture=mixture)
    world = stirred(make_world(settings))
    random = np.random.default_rng(3)
    steps, batch = 5, 7
    observation, action, reward = (
        random.normal(size=size).astype(np.float32)
        for size in ((steps + 1, batch, 17), (steps, batch, 6), (steps, batch))
    )
    everywhere = np.ones((steps, batch), bool)
    window = Window(*map(jnp.asarray, (observation, action, reward, 0.0 * reward, everywhere)))
    # Without luck the two can be compared.
    monkeypatch.setattr(jax.random, "normal", lambda key, shape: jnp.zeros(shape))

    @eqx.filter_jit
    @eqx.filter_value_and_grad
    def loss(world):
        return -objective(world, window, settings.weighting, key=jax.random.key(0)).total

    expected, gradient = loss(world)
    model = Yardstick(architecture(settings), settings.branches).load(world)
    noise = torch.zeros(settings.branches, steps, batch, settings.latents)
    found = model.loss(
        *map(torch.from_numpy, (observation, action, reward)),
        posterior_noise=torch.zeros(steps + 1, batch, settings.latents),
        noise=noise if mixture == "branches" else None,
        weighting=settings.weighting,
    )
    found.backward()
    np.testing.assert_allclose(found.item(), expected, rtol=1e-4)
    leaves = jax.tree_util.tree_leaves_with_path(gradient)
    ours = {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}
    # Some gradients are nothing but rounding: a shift before batch normalisation changes nothing.
    rounding = 1e-5 * max(float(jnp.abs(leaf).max()) for leaf in ours.values())
    for name, parameter in model.named_parameters():
        if name.endswith("recurrent.bias"):
            continue
        theirs = np.zeros(parameter.shape) if parameter.grad is None else parameter.grad.numpy()
        np.testing.assert_allclose(theirs, ours[name], rtol=1e-3, atol=rounding, err_msg=name)
