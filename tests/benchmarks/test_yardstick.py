"""The eager yardsticks are the same model: same weights, same numbers, same gradients."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from plain_rollout import PlainModel, imagine_plainly, plain_policy
from shapes import architecture, make_world, paper_settings, starts, tanh_policies, within_yardstick
from yardstick import Yardstick, numbers
from yardstick_rollout import Imagined, imagine

from vlbm.data.episodes import Episodes
from vlbm.data.sampler import Window
from vlbm.worlds.rollout import rollout
from vlbm.worlds.vlbm import BranchingModel, algorithm_1

SMALL = {"branches": 3, "latents": 4, "units": 8, "head_units": (12, 6), "g_units": (9,)}

pytestmark = pytest.mark.slow  # two frameworks compile and compute


def stirred(world: BranchingModel) -> BranchingModel:
    """Every array moved a little, so that none is a zero or a one that hides where it belongs."""
    random = np.random.default_rng(0)

    def stir(leaf):
        return leaf + jnp.asarray(random.uniform(0.01, 0.2, leaf.shape), jnp.float32)

    networks = jax.tree.map(stir, (world.encoder, world.branches, world.weight_root))
    return eqx.tree_at(lambda tree: (tree.encoder, tree.branches, tree.weight_root), world, networks)


def stirred_within(**changes) -> tuple:
    """The same of a model that the yardstick can compute."""
    settings, world = within_yardstick(paper_settings(**{**SMALL, **changes}))
    spared = [
        world.branches.g.last,
        *(network.mlp.layers[0].norm for network in (world.encoder.later, world.branches.transition)),
    ]
    return settings, eqx.tree_at(
        lambda world: [
            world.branches.g.last,
            *(network.mlp.layers[0].norm for network in (world.encoder.later, world.branches.transition)),
        ],
        stirred(world),
        spared,
        is_leaf=lambda node: node is None,
    )


@pytest.mark.parametrize("normalisation", ["none", "batch"])
def test_it_has_the_parameters_of_vlbm_but_for_what_it_leaves_out(normalisation):
    settings, world = within_yardstick(paper_settings(normalisation=normalisation))
    yardstick = Yardstick(architecture(settings), settings.branches)
    networks = (world.encoder, world.branches, world.weight_root)
    scalers = (world.observation, world.reward, world.action)
    norms = [network.mlp.layers[0].norm for network in (world.encoder.later, world.branches.transition)]
    held, left_out = (
        sum(leaf.size for leaf in jax.tree.leaves(part))
        for part in ((networks, scalers), (world.branches.g.last, norms))
    )
    # PyTorch has two biases in an LSTM where vlbm has one.
    second = 4 * settings.units * (1 + settings.branches)
    assert sum(value.numel() for value in yardstick.state_dict().values()) == held - left_out + second


def check_roll_out(world: BranchingModel, found, policies: dict, start: np.ndarray) -> None:
    expected = rollout(world, policies, start=start, episodes=5, horizon=6, key=jax.random.key(0))
    check_same(expected, found)


def test_the_plain_roll_out_gives_the_same_numbers():
    world = stirred(make_world(paper_settings(**SMALL, sampling="none")))
    policies, start = tanh_policies(3, units=(16, 16)), starts(5)
    acting = [plain_policy(policy) for policy in policies.values()]
    found = imagine_plainly(PlainModel(world), acting, start, horizon=6, random=False)
    check_roll_out(world, found, policies, start)


@pytest.mark.parametrize("normalisation", ["none", "batch"])
def test_the_tuned_roll_out_gives_the_same_numbers(normalisation):
    settings, world = stirred_within(sampling="none", normalisation=normalisation)
    policies, start = tanh_policies(3, units=(16, 16)), starts(5)
    model = Yardstick(architecture(settings), settings.branches).load(world)
    found = imagine(model, list(policies.values()), start, horizon=6, random=False)
    check_roll_out(world, found, policies, start)


def check_same(expected: dict[str, Episodes], found: Imagined) -> None:
    for index, episodes in enumerate(expected.values()):
        for ours, theirs in (
            (episodes.reward.reshape(5, 6), found.reward[:, index].T),
            (episodes.action.reshape(5, 6, -1), found.action[:, index].swapaxes(0, 1)),
            (episodes.observation.reshape(5, 7, -1)[:, 1:], found.observation[:, index].swapaxes(0, 1)),
        ):
            np.testing.assert_allclose(theirs.numpy(), ours, rtol=1e-4, atol=1e-4)


def test_its_loss_and_gradients_are_the_same_where_branches_follow_the_encoder(monkeypatch):
    settings, world = stirred_within(normalisation="none", drive="encoder")
    random = np.random.default_rng(3)
    steps, batch = 5, 7
    observation, action, reward = (
        random.normal(size=size).astype(np.float32)
        for size in ((steps + 1, batch, 17), (steps, batch, 6), (steps, batch))
    )
    everywhere = np.ones((batch, steps), bool)
    of_vlbm = (np.moveaxis(part, 0, 1) for part in (observation, action, reward, 0.0 * reward))
    window = Window(*map(jnp.asarray, (*of_vlbm, everywhere)))
    # Without luck the two can be compared.
    monkeypatch.setattr(jax.random, "normal", lambda key, shape: jnp.zeros(shape))

    @eqx.filter_jit
    @eqx.filter_value_and_grad
    def loss(world):
        # The yardstick's loss is one of steps, vlbm's one of episodes.
        return algorithm_1(world, window, settings.weights, key=jax.random.key(0))[0] / steps

    expected, gradient = loss(world)
    model = Yardstick(architecture(settings), settings.branches).load(world)
    found = model.loss(
        *map(torch.from_numpy, (observation, action, reward)),
        posterior_noise=torch.zeros(steps + 1, batch, settings.latents),
        noise=None,
        weights=settings.weights,
    )
    found.backward()
    np.testing.assert_allclose(found.item(), expected, rtol=1e-4)
    ours = dict(numbers(gradient))
    rounding = 1e-5 * max(float(np.abs(leaf).max()) for leaf in ours.values())
    for name, parameter in model.named_parameters():
        if name.endswith("recurrent.bias"):
            continue
        np.testing.assert_allclose(parameter.grad, ours[name], rtol=1e-3, atol=rounding, err_msg=name)
