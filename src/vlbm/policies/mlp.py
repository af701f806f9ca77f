"""Policies that are multilayer perceptrons, written in JAX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, Shaped

from vlbm.errors import InputError
from vlbm.policies.base import TracedPolicy

NONLINEARITIES: dict[str, Callable[[Array], Array]] = {
    "relu": jax.nn.relu,
    "tanh": jnp.tanh,
    "elu": jax.nn.elu,
    "leaky_relu": jax.nn.leaky_relu,
    "silu": jax.nn.silu,
}
DISTRIBUTIONS = ("gaussian", "tanh_gaussian", "categorical", "greedy")

# How far inside (-1, 1) a squashed action is moved before tanh is undone.
BOUNDARY = 1e-6


class Layer(eqx.Module):
    """One affine map."""

    weight: Float[Array, "out in"]
    bias: Float[Array, " out"]

    def __call__(self, inputs: Float[Array, "batch in"]) -> Float[Array, "batch out"]:
        return inputs @ self.weight.T + self.bias


class MLPPolicy(TracedPolicy):
    """Hidden layers, a head, and for random vectors a second head with the logarithm of their spread.

    - `gaussian`: mean + exp(log_std) * noise. `tanh_gaussian`: the same, squashed by tanh. Without a
      log-std head they are deterministic. What comes out is multiplied by `action_scale`, shifted by
      `action_offset` and clipped to `action_low` and `action_high`; by default none of it changes anything.
    - `categorical`: the head gives logits. `greedy`: the head gives values, of which the largest is
      taken, except that `sample` picks uniformly with probability `exploration`.

    Every leaf is an array and every setting that is not named is still an array (a scale of one, an
    infinite bound), so all policies with the same layers stack into one, whatever their settings.
    """

    hidden: tuple[Layer, ...]
    head: Layer
    log_std_head: Layer | None
    action_scale: Float[Array, " act"]
    action_offset: Float[Array, " act"]
    action_low: Float[Array, " act"]
    action_high: Float[Array, " act"]
    log_std_min: Float[Array, ""]
    log_std_max: Float[Array, ""]
    exploration: Float[Array, ""]
    nonlinearity: str = eqx.field(static=True)
    distribution: str = eqx.field(static=True)

    def __init__(
        self,
        hidden: Sequence[Layer],
        head: Layer,
        log_std_head: Layer | None = None,
        *,
        nonlinearity: str,
        distribution: str,
        action_scale: Any = 1.0,
        action_offset: Any = 0.0,
        action_low: Any = -np.inf,
        action_high: Any = np.inf,
        log_std_min: Any = -np.inf,
        log_std_max: Any = np.inf,
        exploration: Any = 0.0,
    ):
        _check_choice("nonlinearity", nonlinearity, NONLINEARITIES)
        _check_choice("output distribution", distribution, DISTRIBUTIONS)
        dtype, size = head.bias.dtype, head.bias.shape

        def vector(value: Any) -> Array:
            # NumPy, because jnp.broadcast_to compiles a program for each shape.
            return jnp.asarray(np.broadcast_to(np.asarray(value, dtype), size))

        self.hidden = tuple(hidden)
        self.head = head
        self.log_std_head = log_std_head
        self.action_scale = vector(action_scale)
        self.action_offset = vector(action_offset)
        self.action_low = vector(action_low)
        self.action_high = vector(action_high)
        self.log_std_min = jnp.asarray(log_std_min, dtype)
        self.log_std_max = jnp.asarray(log_std_max, dtype)
        self.exploration = jnp.asarray(exploration, dtype)
        self.nonlinearity = nonlinearity
        self.distribution = distribution

    @property
    def observation_size(self) -> int:
        return (self.hidden[0] if self.hidden else self.head).weight.shape[-1]

    @property
    def action_size(self) -> int:
        return self.head.bias.shape[-1]

    @property
    def discrete(self) -> bool:
        return self.distribution in ("categorical", "greedy")

    @property
    def has_log_prob(self) -> bool:
        return self.discrete or self.log_std_head is not None

    def mean(self, observation: Float[Array, "batch obs"]) -> Shaped[Array, " batch *act"]:
        output, _ = self._heads(observation)
        return _argmax_action(output) if self.discrete else self._emit(output)

    def sample(
        self, observation: Float[Array, "batch obs"], *, key: PRNGKeyArray
    ) -> Shaped[Array, " batch *act"]:
        output, log_std = self._heads(observation)
        if self.distribution == "categorical":
            return jax.random.categorical(key, output).astype(jnp.int32)
        if self.distribution == "greedy":
            explore_key, choice_key = jax.random.split(key)
            greedy = _argmax_action(output)
            explores = jax.random.bernoulli(explore_key, self.exploration, greedy.shape)
            choice = jax.random.randint(choice_key, greedy.shape, 0, self.action_size, jnp.int32)
            return jnp.where(explores, choice, greedy)
        if log_std is None:
            return self._emit(output)
        return self._emit(output + jnp.exp(log_std) * jax.random.normal(key, output.shape, output.dtype))

    def log_prob(
        self, observation: Float[Array, "batch obs"], action: Shaped[Array, " batch *act"]
    ) -> Float[Array, " batch"]:
        """Log-density of an action vector, or log-probability of an id.

        With `action_low` and `action_high` this is the density before clipping, as it is when such
        policies are trained and logged: the mass that clipping piles up on a bound is no density.
        """
        output, log_std = self._heads(observation)
        if self.discrete:
            return jnp.take_along_axis(self._log_probs(output), jnp.asarray(action)[..., None], axis=-1)[
                ..., 0
            ]
        if log_std is None:
            raise TypeError("a deterministic policy has no log-probability")
        raw = (jnp.asarray(action) - self.action_offset) / self.action_scale
        stretch = jnp.log(jnp.abs(self.action_scale))
        if self.distribution == "tanh_gaussian":
            # On the boundary itself the density is zero or infinite, and logs round actions onto it:
            # they are moved slightly inside, so the answer is finite for every logged action.
            raw = jnp.arctanh(jnp.clip(raw, -1 + BOUNDARY, 1 - BOUNDARY))
            # log(1 - tanh(raw)^2), without the subtraction that loses all digits near the boundary.
            stretch = stretch + 2 * (jnp.log(2.0) - raw - jax.nn.softplus(-2 * raw))
        return jnp.sum(jax.scipy.stats.norm.logpdf(raw, output, jnp.exp(log_std)) - stretch, axis=-1)

    def _heads(
        self, observation: Float[Array, "batch obs"]
    ) -> tuple[Float[Array, "batch act"], Float[Array, "batch act"] | None]:
        features = jnp.asarray(observation, self.head.bias.dtype)
        for layer in self.hidden:
            features = NONLINEARITIES[self.nonlinearity](layer(features))
        if self.log_std_head is None:
            return self.head(features), None
        log_std = jnp.clip(self.log_std_head(features), self.log_std_min, self.log_std_max)
        return self.head(features), log_std

    def _emit(self, raw: Float[Array, "batch act"]) -> Float[Array, "batch act"]:
        squashed = jnp.tanh(raw) if self.distribution == "tanh_gaussian" else raw
        return jnp.clip(squashed * self.action_scale + self.action_offset, self.action_low, self.action_high)

    def _log_probs(self, output: Float[Array, "batch act"]) -> Float[Array, "batch act"]:
        if self.distribution == "categorical":
            return jax.nn.log_softmax(output)
        greedy = jax.nn.one_hot(_argmax_action(output), self.action_size, dtype=output.dtype)
        return jnp.log((1 - self.exploration) * greedy + self.exploration / self.action_size)


def _argmax_action(output: Float[Array, "batch act"]) -> Shaped[Array, " batch"]:
    return jnp.argmax(output, axis=-1).astype(jnp.int32)


def _check_choice(what: str, given: str, known: Sequence[str] | dict[str, Any]) -> None:
    if given not in known:
        raise InputError(f"{what} '{given}' is not known; known are {', '.join(known)}")
