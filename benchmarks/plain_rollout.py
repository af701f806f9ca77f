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

from vlbm.nn.batch_norm import VARIANCE_FLOOR, BatchNorm
from vlbm.nn.layers import MLP, GaussianMLP, Linear, LSTMCell
from vlbm.policies.mlp import MLPPolicy
from vlbm.worlds import vlbm
from vlbm.worlds.vlbm import BranchingModel


def linear(layer: Linear) -> nn.Linear:
    return _linear(np.asarray(layer.weight), np.asarray(layer.bias))


def mlp(network: MLP) -> nn.Sequential:
    """Linear, batch normalisation, rectifier, layer by layer, then a linear layer."""
    parts: list[nn.Module] = []
    for layer in network.layers:
        norm = layer.norm
        if not isinstance(norm, BatchNorm) or layer.activation != "relu":
            raise ValueError("the plain roll-out knows batch normalisation and rectifiers alone")
        normalised = nn.BatchNorm1d(len(layer.hidden.bias), eps=VARIANCE_FLOOR)
        values = {"weight": norm.gain, "bias": norm.shift, "running_mean": norm.mean}
        values["running_var"] = norm.variance
        loaded = {name: torch.from_numpy(np.array(value)) for name, value in values.items()}
        normalised.load_state_dict({**loaded, "num_batches_tracked": torch.tensor(0)})
        parts += [linear(layer.hidden), normalised, nn.ReLU()]
    return nn.Sequential(*parts, linear(network.last))


def lstm_cell(cell: LSTMCell) -> nn.LSTMCell:
    made = nn.LSTMCell(cell.weight_ih.shape[1], cell.hidden_size)
    values = {"weight_ih": cell.weight_ih, "weight_hh": cell.weight_hh, "bias_ih": cell.bias}
    with torch.no_grad():
        made.bias_hh.zero_()
        for name, value in values.items():
            getattr(made, name).copy_(torch.from_numpy(np.array(value)))
    return made


class Gaussian(nn.Module):
    """A network whose outputs are means and scales."""

    def __init__(self, network: GaussianMLP):
        super().__init__()
        self.network, self.kind = mlp(network.mlp), network.kind

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        mean, spread = self.network(inputs).chunk(2, dim=-1)
        spread = functional.softplus(spread) + self.kind.floor
        return mean, spread.sqrt() if self.kind.spread == "variance" else spread


class Branch(nn.Module):
    """One decoder."""

    def __init__(self, branch: vlbm.Branch):
        super().__init__()
        self.lstm, self.g = lstm_cell(branch.lstm), mlp(branch.g)
        self.transition = Gaussian(branch.transition)
        self.state, self.reward = Gaussian(branch.state), Gaussian(branch.reward)

    def forward(self, latent: Tensor, action: Tensor, memory: Any, random: bool) -> tuple[Any, ...]:
        memory = self.lstm(torch.cat([latent, action], dim=-1), memory)
        mean, scale = self.transition(self.g(memory[0]))
        latent = drawn(mean, scale, random)
        return latent, memory, self.state(latent), self.reward(latent)


class PlainModel(nn.Module):
    """What a roll-out needs of the model."""

    def __init__(self, world: BranchingModel):
        super().__init__()
        self.initial = Gaussian(world.encoder.initial)
        self.branches = nn.ModuleList(
            Branch(jax.tree.map(lambda leaf, index=index: leaf[index], world.branches))
            for index in range(len(world.weight_root))
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
    mean, scale = model.initial(model.apply_scale("observation", observation))
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


def drawn(mean: Tensor, scale: Tensor, random: bool) -> Tensor:
    return mean + scale * torch.randn_like(mean) if random else mean


def _linear(weight: np.ndarray, bias: np.ndarray) -> nn.Linear:
    """From weights as PyTorch has them: [outputs, inputs]."""
    made = nn.Linear(weight.shape[1], weight.shape[0])
    with torch.no_grad():
        made.weight.copy_(torch.from_numpy(np.array(weight)))
        made.bias.copy_(torch.from_numpy(np.array(bias)))
    return made
