"""What it takes to be a policy."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, Shaped


@runtime_checkable
class Policy(Protocol):
    """Anything that acts, on many observations at once.

    Actions are vectors `[batch, act]`, or ids `[batch]` where actions are discrete. Sizes are None
    where the policy cannot tell. A policy may also have `log_prob(observation, action)`; estimators
    that need it say so when it is missing.
    """

    observation_size: int | None
    action_size: int | None  # numbers in an action vector, or the number of discrete actions

    def mean(self, observation: Any) -> Any: ...

    def sample(self, observation: Any, *, key: PRNGKeyArray) -> Any: ...


class TracedPolicy(eqx.Module):
    """A policy written in JAX: it runs inside the compiled roll-out, stacked with others of its shape."""

    @property
    @abstractmethod
    def observation_size(self) -> int | None: ...

    @property
    @abstractmethod
    def action_size(self) -> int | None: ...

    @abstractmethod
    def mean(self, observation: Float[Array, "batch obs"]) -> Shaped[Array, "batch *act"]: ...

    @abstractmethod
    def sample(
        self, observation: Float[Array, "batch obs"], *, key: PRNGKeyArray
    ) -> Shaped[Array, "batch *act"]: ...

    def log_prob(
        self, observation: Float[Array, "batch obs"], action: Shaped[Array, "batch *act"]
    ) -> Float[Array, " batch"]:
        raise TypeError(f"{type(self).__name__} has no log-probability")


class HostPolicy:
    """A policy that lives outside JAX (ONNX, PyTorch, a Python function): NumPy in, NumPy out."""

    observation_size: int | None = None
    action_size: int | None = None

    def mean(self, observation: Float[np.ndarray, "batch obs"]) -> Shaped[np.ndarray, "batch *act"]:
        raise NotImplementedError

    def sample(
        self, observation: Float[np.ndarray, "batch obs"], *, key: PRNGKeyArray
    ) -> Shaped[np.ndarray, "batch *act"]:
        """A policy that knows no randomness acts by its mean."""
        return self.mean(observation)
