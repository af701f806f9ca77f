"""Imagined episodes by the eager yardstick: all policies and branches at once, without autograd."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from yardstick import Yardstick

from vlbm.policies.mlp import MLPPolicy


class Imagined(NamedTuple):
    """Steps first, then policies and episodes."""

    observation: Tensor
    action: Tensor
    reward: Tensor


class Crowd:
    """Deterministic tanh policies of one shape, in one product per layer."""

    def __init__(self, policies: Sequence[MLPPolicy]):
        layers = [[*policy.hidden, policy.head] for policy in policies]
        self.weights = [
            torch.from_numpy(np.stack([np.asarray(layer.weight).T for layer in each]))
            for each in zip(*layers, strict=True)
        ]
        self.biases = [
            torch.from_numpy(np.stack([np.asarray(layer.bias) for layer in each]))[:, None]
            for each in zip(*layers, strict=True)
        ]

    def __call__(self, observation: Tensor) -> Tensor:
        features = observation
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            features = functional.relu_(torch.baddbmm(bias, features, weight))
        return torch.tanh_(torch.baddbmm(self.biases[-1], features, self.weights[-1]))


@torch.inference_mode()
def imagine(
    model: Yardstick, policies: Sequence[MLPPolicy], start: np.ndarray, *, horizon: int, random: bool = True
) -> Imagined:
    """`random=False` takes means everywhere; draws are shared by policies, as vlbm shares them."""
    model.eval()
    crowd, decoder = Crowd(policies), model.decoder
    episodes, observations = start.shape
    branches, latents = len(model.weight_root), decoder.transition_head.linear.weight.shape[-1] // 2
    rows = len(policies) * episodes
    observation = torch.from_numpy(start).expand(len(policies), -1, -1)

    def draw(*shape: int) -> Tensor:
        """[..., episodes, size], the same for every policy."""
        if not random:
            return torch.zeros(())
        noise = torch.randn(*shape[:-1], 1, episodes, shape[-1])
        return noise.expand(*shape[:-1], len(policies), episodes, shape[-1]).flatten(-3, -2)

    standardised = model.observation.apply_to(observation).reshape(rows, observations)
    latent = model.encoder.begin(standardised).sample(draw(1, latents)).expand(branches, -1, -1)
    hidden = cell = torch.zeros(branches, rows, decoder.dense.weight.shape[-1])
    # One product per step gives all gates.
    gate_weight = torch.cat([decoder.lstm.inputs.weight, decoder.lstm.recurrent.weight], dim=1)
    gate_bias = (decoder.lstm.inputs.bias + decoder.lstm.recurrent.bias)[:, None]
    weight = model.weight
    seen, taken, earned = [], [], []
    for _ in range(horizon):
        action = crowd(observation)
        inputs = model.action.apply_to(action).reshape(rows, -1).expand(branches, -1, -1)
        gates = torch.baddbmm(gate_bias, torch.cat([latent, inputs, hidden], dim=-1), gate_weight)
        hidden, cell = decoder.lstm.gated(gates, cell)
        latent = decoder.transition(decoder.alignment(hidden)).sample(draw(branches, latents))
        emitted = decoder.observation_head(decoder.observation(latent)).mixed(weight)
        paid = decoder.reward_head(decoder.reward(latent)).mixed(weight)
        observation = model.observation.invert(emitted.sample(draw(observations)))
        observation = observation.view(len(policies), episodes, observations)
        seen.append(observation)
        taken.append(action)
        earned.append(model.reward.invert(paid.sample(draw(1))).view(len(policies), episodes))
    return Imagined(torch.stack(seen), torch.stack(taken), torch.stack(earned))
