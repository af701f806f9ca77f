"""The policy interface."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, Shaped


@runtime_checkable
class Policy(Protocol):
    """Anything that acts, on many observations at once.

    Actions are vectors `[batch, act]`, or ids `[batch]` where actions are discrete. Sizes are None
    where they are unknown. A policy may also have `discrete`, which says whether its actions
    are ids, and `log_prob(observation, action)`; estimators that need the latter say so when it is
    missing (ask `has_log_prob`). A policy has no name: a mapping from names to policies carries them.
    """

    @property
    def observation_size(self) -> int | None: ...

    @property
    def action_size(self) -> int | None:
        """Numbers in an action vector, or the number of discrete actions."""

    def mean(self, observation: Any) -> Any:
        """The deterministic action: the mean, the squashed mean, or the most probable id."""

    def sample(self, observation: Any, *, key: PRNGKeyArray) -> Any: ...


class TracedPolicy(eqx.Module):
    """A policy written in JAX: it runs inside the compiled roll-out, stacked with others of its shape."""

    @property
    @abstractmethod
    def observation_size(self) -> int | None: ...

    @property
    @abstractmethod
    def action_size(self) -> int | None: ...

    @property
    def discrete(self) -> bool | None:
        return None

    @property
    def has_log_prob(self) -> bool:
        return type(self).log_prob is not TracedPolicy.log_prob

    @abstractmethod
    def mean(self, observation: Float[Array, "batch obs"]) -> Shaped[Array, " batch *act"]: ...

    @abstractmethod
    def sample(
        self, observation: Float[Array, "batch obs"], *, key: PRNGKeyArray
    ) -> Shaped[Array, " batch *act"]: ...

    def log_prob(
        self, observation: Float[Array, "batch obs"], action: Shaped[Array, " batch *act"]
    ) -> Float[Array, " batch"]:
        raise TypeError(f"{type(self).__name__} has no log-probability")


class HostPolicy(ABC):
    """A policy that lives outside JAX (ONNX, PyTorch, a Python function): NumPy in, NumPy out."""

    observation_size: int | None = None
    action_size: int | None = None
    discrete: bool | None = None
    may_give_scores = False  # whether it can be a file that gives a number for every discrete action

    @abstractmethod
    def mean(self, observation: Float[np.ndarray, "batch obs"]) -> Shaped[np.ndarray, " batch *act"]: ...

    def sample(
        self, observation: Float[np.ndarray, "batch obs"], *, key: PRNGKeyArray
    ) -> Shaped[np.ndarray, " batch *act"]:
        """By default deterministic: the mean."""
        return self.mean(observation)


def has_log_prob(policy: Policy) -> bool:
    """Whether `policy.log_prob` can be called: a deterministic policy has no density."""
    return bool(getattr(policy, "has_log_prob", callable(getattr(policy, "log_prob", None))))
