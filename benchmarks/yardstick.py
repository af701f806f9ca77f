"""The branching model in eager PyTorch, as a user would write it: the yardstick for training and roll-out.

Branches are one batch of products, known inputs are projected outside the recursion, the roll-out runs
without autograd and multiplies the weights of gates in one product. `load` takes vlbm's weights over, so that
numbers can be compared. What vlbm also has to care for is left out, in the yardstick's favour: padding,
terminations, re-encoding and clipping; and of the model itself the last layer of g, the normalisation after
the LSTMs, and branches that run free in training (the yardstick's are given the encoder's latents).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from vlbm.worlds.vlbm import BranchingModel, Weights

LOG_TWO_PI = 1.8378770664093453


class Architecture(NamedTuple):
    """Sizes of the networks."""

    observations: int
    actions: int
    latents: int
    units: int
    head_units: tuple[int, ...]
    normalisation: str
    scale_floor: float


class Linear(nn.Module):
    """Stacked layers: [stack, rows, inputs] to [stack, rows, outputs]."""

    def __init__(self, stack: int, inputs: int, outputs: int):
        super().__init__()
        bound = (3.0 / inputs) ** 0.5
        self.weight = nn.Parameter(torch.empty(stack, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(stack, outputs))

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.baddbmm(self.bias[:, None], inputs, self.weight)


class BatchNorm(nn.Module):
    def __init__(self, stack: int, size: int):
        super().__init__()
        self.gain, self.shift = nn.Parameter(torch.ones(stack, size)), nn.Parameter(torch.zeros(stack, size))
        self.register_buffer("mean", torch.zeros(stack, size))
        self.register_buffer("variance", torch.ones(stack, size))

    def forward(self, inputs: Tensor) -> Tensor:
        mean, variance = self.mean, self.variance
        if self.training:
            variance, mean = torch.var_mean(inputs, dim=1, correction=0)
            with torch.no_grad():
                self.mean.lerp_(mean, 0.01)
                self.variance.lerp_(variance, 0.01)
        scale = torch.rsqrt(variance + 1e-3) * self.gain
        return torch.addcmul((self.shift - mean * scale)[:, None], inputs, scale[:, None])


class MLP(nn.Module):
    def __init__(self, stack: int, sizes: Sequence[int], normalisation: str):
        super().__init__()
        if normalisation not in ("none", "batch"):
            raise ValueError(f"the yardstick knows no normalisation '{normalisation}'")
        self.layers = nn.ModuleList(Linear(stack, *pair) for pair in itertools.pairwise(sizes))
        self.norms = nn.ModuleList(
            nn.Identity() if normalisation == "none" else BatchNorm(stack, size) for size in sizes[1:]
        )

    def forward(self, inputs: Tensor) -> Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            inputs = functional.relu(norm(layer(inputs)))
        return inputs


class Normal(NamedTuple):
    mean: Tensor
    scale: Tensor

    def log_prob(self, value: Tensor) -> Tensor:
        deviation = (value - self.mean) / self.scale
        return -0.5 * (deviation**2 + LOG_TWO_PI) - torch.log(self.scale)

    def kl(self, other: Normal) -> Tensor:
        ratio, shift = self.scale / other.scale, (self.mean - other.mean) / other.scale
        return 0.5 * (ratio**2 + shift**2 - 1.0) - torch.log(ratio)

    def sample(self, noise: Tensor) -> Tensor:
        return torch.addcmul(self.mean, self.scale, noise)

    def mixed(self, weight: Tensor) -> Normal:
        """The branches' weighted average, over the leading axis."""
        return Normal(
            torch.tensordot(weight, self.mean, 1),
            torch.sqrt(torch.tensordot(weight**2, self.scale**2, 1)),
        )


class GaussianHead(nn.Module):
    def __init__(self, stack: int, inputs: int, outputs: int, floor: float):
        super().__init__()
        self.linear, self.floor = Linear(stack, inputs, 2 * outputs), floor

    def forward(self, features: Tensor) -> Normal:
        mean, spread = self.linear(features).chunk(2, dim=-1)
        return Normal(mean, functional.softplus(spread) + self.floor)


class LSTM(nn.Module):
    def __init__(self, stack: int, inputs: int, units: int, feedback: int = 0):
        super().__init__()
        self.inputs = Linear(stack, inputs, 4 * units)
        self.recurrent = Linear(stack, units + feedback, 4 * units)

    def project(self, inputs: Tensor) -> Tensor:
        bias = self.inputs.bias + self.recurrent.bias
        return torch.baddbmm(bias[:, None], inputs, self.inputs.weight)

    @staticmethod
    def gated(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        enter, forget, candidate, leave = gates.chunk(4, dim=-1)
        cell = torch.sigmoid(forget) * cell + torch.sigmoid(enter) * torch.tanh(candidate)
        return torch.sigmoid(leave) * torch.tanh(cell), cell


class Encoder(nn.Module):
    def __init__(self, sizes: Architecture):
        super().__init__()
        last, floor = sizes.head_units[-1], sizes.scale_floor
        self.initial = MLP(1, (sizes.observations, *sizes.head_units), sizes.normalisation)
        self.initial_head = GaussianHead(1, last, sizes.latents, floor)
        self.lstm = LSTM(1, sizes.actions + sizes.observations, sizes.units, feedback=sizes.latents)
        self.dense = Linear(1, sizes.units, sizes.units)
        self.head = GaussianHead(1, sizes.units, sizes.latents, floor)

    def begin(self, observation: Tensor) -> Normal:
        return self.initial_head(self.initial(observation[None]))

    def forward(
        self, observation: Tensor, action: Tensor, noise: Tensor
    ) -> tuple[Tensor, Normal, Normal, Tensor]:
        """Latents [steps+1, batch, latent], the first and the later posteriors, and hidden states."""
        steps, batch = action.shape[:2]
        inputs = torch.cat([action, observation[1:]], dim=-1).flatten(0, 1)[None]
        projected = self.lstm.project(inputs).view(1, steps, batch, -1)
        first = self.begin(observation[0])
        latent = first.sample(noise[0])
        hidden = cell = latent.new_zeros(1, batch, self.dense.weight.shape[-1])
        latents, hiddens, means, scales = [latent], [], [], []
        for step in range(steps):
            known = torch.cat([hidden, latent], dim=-1)
            gates = torch.baddbmm(projected[:, step], known, self.lstm.recurrent.weight)
            hidden, cell = self.lstm.gated(gates, cell)
            posterior = self.head(functional.relu(self.dense(hidden)))
            latent = posterior.sample(noise[step + 1])
            latents.append(latent)
            hiddens.append(hidden)
            means.append(posterior.mean)
            scales.append(posterior.scale)
        later = Normal(torch.cat(means), torch.cat(scales))
        return torch.cat(latents), Normal(first.mean[0], first.scale[0]), later, torch.cat(hiddens)


class Decoder(nn.Module):
    def __init__(self, sizes: Architecture, branches: int):
        super().__init__()
        kind, last, floor = sizes.normalisation, sizes.head_units[-1], sizes.scale_floor
        self.lstm = LSTM(branches, sizes.latents + sizes.actions, sizes.units)
        self.alignment = MLP(branches, (sizes.units, sizes.units), kind)
        self.dense = Linear(branches, sizes.units, sizes.units)
        self.transition_head = GaussianHead(branches, sizes.units, sizes.latents, floor)
        self.observation = MLP(branches, (sizes.latents, *sizes.head_units), kind)
        self.observation_head = GaussianHead(branches, last, sizes.observations, floor)
        self.reward = MLP(branches, (sizes.latents, *sizes.head_units), kind)
        self.reward_head = GaussianHead(branches, last, 1, floor)

    def transition(self, aligned: Tensor) -> Normal:
        return self.transition_head(functional.relu(self.dense(aligned)))

    def recur(self, latent: Tensor, action: Tensor) -> Tensor:
        """Hidden states [branch, steps, batch, units] along a window, driven by the encoder's latents."""
        steps, batch = action.shape[:2]
        branches, units = self.dense.weight.shape[:2]
        inputs = torch.cat([latent, action], dim=-1).flatten(0, 1).expand(branches, -1, -1)
        projected = self.lstm.project(inputs).view(branches, steps, batch, -1)
        hidden = cell = projected.new_zeros(branches, batch, units)
        hiddens = []
        for step in range(steps):
            gates = torch.baddbmm(projected[:, step], hidden, self.lstm.recurrent.weight)
            hidden, cell = self.lstm.gated(gates, cell)
            hiddens.append(hidden)
        return torch.stack(hiddens, dim=1)


class Scaler(nn.Module):
    def __init__(self, columns: int):
        super().__init__()
        for name in ("mean", "scale", "low", "high"):
            self.register_buffer(name, torch.zeros(columns))

    def apply_to(self, raw: Tensor) -> Tensor:
        return (raw - self.mean) / self.scale

    def invert(self, standardised: Tensor) -> Tensor:
        return torch.addcmul(self.mean, standardised, self.scale)


class Yardstick(nn.Module):
    """The whole model; `loss` is vlbm's objective on windows without padding."""

    def __init__(self, sizes: Architecture, branches: int):
        super().__init__()
        self.encoder, self.decoder = Encoder(sizes), Decoder(sizes, branches)
        self.weight_root = nn.Parameter(torch.ones(branches))
        self.observation, self.action = Scaler(sizes.observations), Scaler(sizes.actions)
        self.reward = Scaler(1)

    @property
    def weight(self) -> Tensor:
        squared = self.weight_root**2
        return squared / (1e-8 + squared.sum())

    def load(self, world: BranchingModel) -> Yardstick:
        """vlbm's numbers; one that is missing is an error."""
        self.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in numbers(world)})
        return self

    def loss(
        self,
        observation: Tensor,
        action: Tensor,
        reward: Tensor,
        *,
        posterior_noise: Tensor,
        noise: Tensor | None,
        weights: Weights,
    ) -> Tensor:
        """Of windows [steps+1, batch, ...]; `noise` [branch, steps, batch, latent] only where it is used."""
        observation = self.observation.apply_to(observation)
        action = self.action.apply_to(action)
        reward = self.reward.apply_to(reward[..., None])
        steps, batch = action.shape[:2]
        decoder, branches = self.decoder, len(self.weight_root)
        latent, first, later, encoded = self.encoder(observation, action, posterior_noise)
        hidden = decoder.recur(latent[:-1], action).flatten(1, 2)
        aligned = decoder.alignment(hidden)
        transition = decoder.transition(aligned)
        read = latent.expand(branches, -1, -1, -1)
        if noise is not None:
            own = transition.sample(noise.flatten(1, 2)).view(branches, steps, batch, -1)
            read = torch.cat([read, torch.cat([read[:, :1], own], dim=1)], dim=2)
        rows = read.shape[2]
        seen = decoder.observation_head(decoder.observation(read.flatten(1, 2)))
        earned = decoder.reward_head(decoder.reward(read[:, 1:].flatten(1, 2)))
        seen = Normal(*(part.view(branches, steps + 1, rows, -1) for part in seen))
        earned = Normal(*(part.view(branches, steps, rows, -1) for part in earned))
        count = steps * batch

        def likelihood(seen: Normal, earned: Normal) -> Tensor:
            return (seen.log_prob(observation).sum() + earned.log_prob(reward).sum()) / count

        def part(distribution: Normal, of: slice) -> Normal:
            return Normal(distribution.mean[..., of, :], distribution.scale[..., of, :])

        encoder_rows, predicted_rows = slice(0, batch), slice(rows - batch, rows)
        bound = likelihood(part(seen, encoder_rows), part(earned, encoder_rows))
        divergence = Normal(*(each.flatten(0, 1) for each in later)).kl(transition).sum() / count
        standard = Normal(torch.zeros_like(first.mean), torch.ones_like(first.scale))
        bound = bound - weights.kl_weight * divergence
        bound = bound - weights.initial_kl_weight * branches * first.kl(standard).sum() / count
        total = weights.elbo_weight * bound
        if weights.rsa == "pairwise":
            units = aligned.shape[-1]
            spread = torch.var(aligned - encoded.flatten(0, 1), dim=-1, correction=0).sum()
            total = total - weights.rsa_weight * spread * (2.0 * units / (units - 1)) / count
        if weights.mixture > 0:
            mixed = [part(kind, predicted_rows).mixed(self.weight) for kind in (seen, earned)]
            total = total + weights.mixture * likelihood(*mixed)
        return -total


def numbers(world: BranchingModel) -> Iterator[tuple[str, Any]]:
    """What vlbm's model holds, or its gradient, by the yardstick's names: layers as [stack, inputs, outputs].

    The last layer of g and the normalisation after the LSTMs are not among them.
    """
    # The encoder is one network, the branches are stacked.
    encoder, branches = jax.tree.map(lambda leaf: np.asarray(leaf)[None], world.encoder), world.branches
    parts = {
        "encoder.initial": encoder.initial.mlp,
        "decoder.alignment": branches.g,
        "decoder.observation": branches.state.mlp,
        "decoder.reward": branches.reward.mlp,
    }
    for name, mlp in parts.items():
        for index, layer in enumerate(mlp.layers):
            yield from _linear(f"{name}.layers.{index}", layer.hidden)
            if layer.norm is not None:
                for part in ("gain", "shift", "mean", "variance"):
                    yield f"{name}.norms.{index}.{part}", getattr(layer.norm, part)
        if mlp is not branches.g:
            yield from _linear(f"{name}_head.linear", mlp.last)
    for name, network in (("encoder", encoder.later.mlp), ("decoder", branches.transition.mlp)):
        yield from _linear(f"{name}.dense", network.layers[0].hidden)
        head = "head" if name == "encoder" else "transition_head"
        yield from _linear(f"{name}.{head}.linear", network.last)
    for name, cell, fed_back in (("encoder", encoder.lstm, True), ("decoder", branches.lstm, False)):
        # The encoder's first inputs are the latents that it drew, which the yardstick counts as recurrent.
        latents = world.branches.lstm.weight_ih.shape[-1] - world.action.mean.shape[0] if fed_back else 0
        weight = np.swapaxes(cell.weight_ih, -1, -2)
        recurrent = np.concatenate([np.swapaxes(cell.weight_hh, -1, -2), weight[:, :latents]], axis=1)
        yield f"{name}.lstm.inputs.weight", weight[:, latents:]
        yield f"{name}.lstm.inputs.bias", cell.bias
        yield f"{name}.lstm.recurrent.weight", recurrent
        yield f"{name}.lstm.recurrent.bias", np.zeros_like(cell.bias)
    yield "weight_root", world.weight_root
    for name in ("observation", "action", "reward"):
        for part in ("mean", "scale", "low", "high"):
            yield f"{name}.{part}", getattr(getattr(world, name), part)


def _linear(name: str, layer: Any) -> Iterator[tuple[str, Any]]:
    yield f"{name}.weight", np.swapaxes(layer.weight, -1, -2)
    yield f"{name}.bias", layer.bias
