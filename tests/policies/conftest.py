"""Small policies with random weights."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from vlbm.policies import Layer, MLPPolicy

MakePolicy = Callable[..., MLPPolicy]


@pytest.fixture
def make_policy() -> MakePolicy:
    def make(
        *,
        observations: int = 3,
        hidden: tuple[int, ...] = (8, 5),
        actions: int = 2,
        spread: bool = True,
        seed: int = 0,
        **settings: Any,
    ) -> MLPPolicy:
        generator = np.random.default_rng(seed)

        def layer(inputs: int, outputs: int, shift: float = 0.0) -> Layer:
            weight = generator.normal(size=(outputs, inputs)) / np.sqrt(inputs)
            bias = 0.1 * generator.normal(size=outputs) + shift
            return Layer(jnp.asarray(weight, jnp.float32), jnp.asarray(bias, jnp.float32))

        sizes = (observations, *hidden)
        layers = [layer(*pair) for pair in itertools.pairwise(sizes)]
        head = layer(sizes[-1], actions)
        log_std_head = layer(sizes[-1], actions, shift=-0.5) if spread else None
        settings = {"nonlinearity": "relu", "distribution": "tanh_gaussian"} | settings
        return MLPPolicy(layers, head, log_std_head, **settings)

    return make


@pytest.fixture
def observation() -> np.ndarray:
    return np.random.default_rng(1).normal(size=(6, 3)).astype(np.float32)
