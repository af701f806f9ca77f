"""Policies that are Python functions or objects."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, PRNGKeyArray, Shaped

from vlbm.errors import InputError
from vlbm.policies.base import HostPolicy, Policy

SPECIFICATION = re.compile(r"(?P<module>[^\W\d]\w*(\.[^\W\d]\w*)*):(?P<name>[^\W\d]\w*(\.[^\W\d]\w*)*)")


class FunctionPolicy(HostPolicy):
    """A function `act(observations[batch, obs]) -> actions`; a random one also has `draw(..., key=)`."""

    def __init__(
        self,
        act: Callable[[Any], Any],
        *,
        draw: Callable[..., Any] | None = None,
        observation_size: int | None = None,
        action_size: int | None = None,
        discrete: bool | None = None,
    ):
        self._act = act
        self._draw = draw
        self.observation_size = observation_size
        self.action_size = action_size
        self.discrete = discrete

    def mean(self, observation: Float[np.ndarray, "batch obs"]) -> Shaped[np.ndarray, " batch *act"]:
        return self._act(np.asarray(observation))

    def sample(
        self, observation: Float[np.ndarray, "batch obs"], *, key: PRNGKeyArray
    ) -> Shaped[np.ndarray, " batch *act"]:
        if self._draw is None:
            return self.mean(observation)
        return self._draw(np.asarray(observation), key=key)


def as_policy(candidate: Any, *, name: str = "policy") -> Policy:
    """A policy from a policy, from an object with `mean` and `sample`, or from a function."""
    if isinstance(candidate, type):
        raise InputError(f"{name} is the class {candidate.__name__}; give an instance of it, or a function")
    if isinstance(candidate, Policy):
        return candidate
    if callable(getattr(candidate, "mean", None)) and callable(getattr(candidate, "sample", None)):
        sizes = {
            size: getattr(candidate, size, None) for size in ("observation_size", "action_size", "discrete")
        }
        policy = FunctionPolicy(candidate.mean, draw=candidate.sample, **sizes)
        if callable(getattr(candidate, "log_prob", None)):
            policy.log_prob = candidate.log_prob  # type: ignore[attr-defined]
        return policy
    if callable(candidate):
        return FunctionPolicy(candidate)
    raise InputError(
        f"{name} is a {type(candidate).__name__}; a policy is a function, or has mean and sample"
    )


def load_function(specification: str) -> Policy:
    """The policy that `module:function` names."""
    return as_policy(import_object(specification), name=f"'{specification}'")


def import_object(specification: str) -> Any:
    """Whatever `module:name` names; the module may lie in the current folder."""
    match = SPECIFICATION.fullmatch(specification)
    if match is None:
        raise InputError(f"'{specification}' is not of the form module:function")
    folder = str(Path.cwd())
    sys.path.insert(0, folder)
    importlib.invalidate_caches()  # the module may have been written a moment ago
    try:
        module = importlib.import_module(match["module"])
        return attrgetter(match["name"])(module)
    except ModuleNotFoundError as error:
        raise InputError(f"'{specification}': there is no module '{error.name}'") from error
    except AttributeError as error:
        raise InputError(f"'{specification}': {error}") from error
    except Exception as error:
        raise InputError(f"'{specification}': importing it failed with {error!r}") from error
    finally:
        sys.path.remove(folder)
