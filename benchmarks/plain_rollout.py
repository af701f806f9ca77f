"""The roll-out as a user would write it: stock PyTorch modules, a list of branches, a list of policies.

The same model with the same weights as vlbm's; branches and policies are visited one after the other, as the
authors' code does. `yardstick_rollout.py` has all of them in one product, which takes more thought.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from yardstick_rollout import Imagined

from vlbm.models.branching import BranchingModel
from vlbm.networks import LSTM, MLP, BatchNorm, Linear
from vlbm.policies.mlp import MLPPolicy


def linear(layer: Linear) -> nn.Linear:
    return _linear(np.asarray(layer.weight).T, np.asarray(layer.bias))


def mlp(network: MLP) -> nn.Sequential:
    """Linear, batch normalisation, rectifier, layer by layer."""
    parts: list[nn.Module] = []
    for layer, norm in zip(network.layers, network.norms, strict=True):
        if not isinstance(norm, BatchNorm):
            raise ValueError("the plain roll-out knows batch normalisation alone")
        normalised = nn.BatchNorm1d(layer.bias.shape[-1], eps=1e-3)
        values = {"weight": norm.gain, "bias": norm.shift, "running_mean": norm.mean}
        values["running_var"] = norm.variance
        loaded = {name: torch.from_numpy(np.array(value)) for name, value in values.items()}
        normalised.load_state_dict({**loaded, "num_batches_tracked": torch.tensor(0)})
        parts += [linear(layer), normalised, nn.ReLU()]
    return nn.Sequential(*parts)


def lstm_cell(cell: LSTM) -> nn.LSTMCell:
    made = nn.LSTMCell(cell.inputs.weight.shape[0], cell.units)
    layers = {"ih": cell.inputs, "hh": cell.recurrent}
    with torch.no_grad():
        for name, layer in layers.items():
            getattr(made, f"weight_{name}").copy_(torch.from_numpy(np.array(layer.weight).T))
            getattr(made, f"bias_{name}").copy_(torch.from_numpy(np.array(layer.bias)))
    return made


class Branch(nn.Module):
    """One decoder."""

    def __init__(self, decoder: Any, floor: float):
        super().__init__()
        self.lstm, self.alignment = lstm_cell(decoder.lstm), mlp(decoder.alignment)
        self.dense = nn.Sequential(linear(decoder.dense), nn.ReLU())
        self.transition = linear(decoder.transition_head.linear)
        self.observation = nn.Sequential(mlp(decoder.observation), linear(decoder.observation_head.linear))
        self.reward = nn.Sequential(mlp(decoder.reward), linear(decoder.reward_head.linear))
        self.floor = floor

    def forward(self, latent: Tensor, action: Tensor, state: Any, random: bool) -> tuple[Any, ...]:
        state = self.lstm(torch.cat([latent, action], dim=-1), state)
        mean, scale = gaussian(self.transition(self.dense(self.alignment(state[0]))), self.floor)
        latent = drawn(mean, scale, random)
        observation, reward = self.observation(latent), self.reward(latent)
        return latent, state, gaussian(observation, self.floor), gaussian(reward, self.floor)


class PlainModel(nn.Module):
    """What a roll-out needs of the model."""

    def __init__(self, world: BranchingModel):
        super().__init__()
        encoder = jax.tree.map(lambda leaf: leaf[0], world.encoder)
        floor = self.floor = encoder.head.floor
        self.initial = nn.Sequential(mlp(encoder.initial), linear(encoder.initial_head.linear))
        self.branches = nn.ModuleList(
            Branch(jax.tree.map(lambda leaf, index=index: leaf[index], world.decoder), floor)
            for index in range(world.branches)
        )
        self.weight = torch.from_numpy(np.array(world.weight))
        self.scalers = {
            name: tuple(torch.from_numpy(np.array(part)) for part in (scaler.mean, scaler.scale))
            for name in ("observation", "action", "reward")
            for scaler in (getattr(world, name),)
        }
        self.eval()

    def apply_scale(self, name: str, raw: Tensor) -> Tensor:
        mean, scale = self.scalers[name]
        return (raw - mean) / scale

    def invert_scale(self, name: str, standardised: Tensor) -> Tensor:
        mean, scale = self.scalers[name]
        return standardised * scale + mean

    def consensus(self, parts: list[tuple[Tensor, Tensor]], random: bool) -> Tensor:
        """A draw from the branches' weighted average."""
        mean, variance = torch.zeros(()), torch.zeros(())
        for weight, (branch_mean, branch_scale) in zip(self.weight, parts, strict=True):
            mean = mean + weight * branch_mean
            variance = variance + (weight * branch_scale) ** 2
        return drawn(mean, variance.sqrt(), random)


@torch.no_grad()
def imagine_plainly(
    model: PlainModel,
    policies: Sequence[nn.Module],
    start: np.ndarray,
    *,
    horizon: int,
    random: bool = True,
) -> Imagined:
    """`random=False` takes means everywhere."""
    observation = torch.from_numpy(start).repeat(len(policies), 1)
    first = model.initial(model.apply_scale("observation", observation))
    mean, scale = gaussian(first, model.floor)
    latent = drawn(mean, scale, random)
    latents, states = [latent] * len(model.branches), [None] * len(model.branches)
    seen, taken, earned = [], [], []
    for _ in range(horizon):
        parts = observation.split(len(start))
        action = torch.cat([policy(part) for policy, part in zip(policies, parts, strict=True)])
        inputs = model.apply_scale("action", action)
        emitted, paid = [], []
        for index, branch in enumerate(model.branches):
            latents[index], states[index], shown, reward = branch(
                latents[index], inputs, states[index], random
            )
            emitted.append(shown)
            paid.append(reward)
        observation = model.invert_scale("observation", model.consensus(emitted, random))
        reward = model.invert_scale("reward", model.consensus(paid, random))
        seen.append(observation.view(len(policies), len(start), -1))
        taken.append(action.view(len(policies), len(start), -1))
        earned.append(reward.view(len(policies), len(start)))
    return Imagined(torch.stack(seen), torch.stack(taken), torch.stack(earned))


def plain_policy(policy: MLPPolicy) -> nn.Sequential:
    """The mean action of a tanh policy."""
    layers = [*policy.hidden, policy.head]
    made = [_linear(np.asarray(layer.weight), np.asarray(layer.bias)) for layer in layers]
    between = [nn.ReLU()] * (len(made) - 1) + [nn.Tanh()]
    return nn.Sequential(*itertools.chain.from_iterable(zip(made, between, strict=True)))


def gaussian(outputs: Tensor, floor: float) -> tuple[Tensor, Tensor]:
    mean, spread = outputs.chunk(2, dim=-1)
    return mean, functional.softplus(spread) + floor


def drawn(mean: Tensor, scale: Tensor, random: bool) -> Tensor:
    return mean + scale * torch.randn_like(mean) if random else mean


def _linear(weight: np.ndarray, bias: np.ndarray) -> nn.Linear:
    """From weights as PyTorch has them: [outputs, inputs]."""
    made = nn.Linear(weight.shape[1], weight.shape[0])
    with torch.no_grad():
        made.weight.copy_(torch.from_numpy(np.array(weight)))
        made.bias.copy_(torch.from_numpy(np.array(bias)))
    return made
