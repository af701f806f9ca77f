"""How the benchmarks time calls, count products and find out what this process could do at best."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vlbm.data.episodes import Episodes

PEAK_SIZE = 1536


@cache
def _squares() -> tuple[Any, list[Any]]:
    product = jax.jit(lambda left, right: left @ right)
    square = jnp.ones((PEAK_SIZE, PEAK_SIZE), jnp.float32)
    parts = [jax.device_put(square, device) for device in jax.devices()]
    jax.block_until_ready([product(part, part) for part in parts])
    return product, parts


def peak_time() -> float:
    """Seconds per floating-point operation of a large product, on every device at once."""
    product, parts = _squares()
    times = []
    for _ in range(3):
        began = time.perf_counter()
        jax.block_until_ready([product(part, part) for part in parts])
        times.append(time.perf_counter() - began)
    return min(times) / (2.0 * PEAK_SIZE**3 * len(parts))


def products(function: Callable[..., Any], *arguments: Any) -> float:
    """Floating-point operations in the matrix products of one call, those in loops as often as they run."""
    return _products(jax.make_jaxpr(function)(*arguments).jaxpr)


def _products(jaxpr: Any) -> float:
    total = 0.0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            free, inner, whole = _sizes(equation)
            # Vectors are no matrices: most such products are sums, written as products with ones.
            total += 0.0 if 1.0 in free else 2.0 * inner * whole
        times = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        for value in equation.params.values():
            for inside in value if isinstance(value, tuple | list) else (value,):
                inner_jaxpr = getattr(inside, "jaxpr", inside)
                if hasattr(inner_jaxpr, "eqns"):
                    total += times * _products(inner_jaxpr)
    return total


def _sizes(equation: Any) -> tuple[list[float], float, float]:
    """Of a product: what each factor has for itself, what is contracted, and the result."""
    contracted, together = equation.params["dimension_numbers"]
    shapes = [factor.aval.shape for factor in equation.invars]
    inner = float(np.prod([shapes[0][axis] for axis in contracted[0]]))
    free = [
        float(np.prod(shape)) / inner / float(np.prod([shape[axis] for axis in batch]))
        for shape, batch in zip(shapes, together, strict=True)
    ]
    return free, inner, float(np.prod(equation.outvars[0].aval.shape))


def smooth_logs(
    *, episodes: int, length: int, observations: int = 17, actions: int = 6, seed: int = 0
) -> Episodes:
    """Episodes the size of HalfCheetah's, from a stable linear system."""
    random = np.random.default_rng(seed)
    steps = episodes * length
    action = random.uniform(-1, 1, (episodes, length, actions)).astype(np.float32)
    mix = random.normal(size=(actions, observations)).astype(np.float32) * 0.3
    observation = np.zeros((episodes, length + 1, observations), np.float32)
    observation[:, 0] = random.normal(size=(episodes, observations))
    for step in range(length):
        observation[:, step + 1] = 0.95 * observation[:, step] + action[:, step] @ mix
    return Episodes(
        observation=observation.reshape(-1, observations),
        action=action.reshape(steps, actions),
        reward=observation[:, 1:, 0].reshape(steps),
        length=np.full(episodes, length),
        terminated=np.zeros(episodes, bool),
    )
