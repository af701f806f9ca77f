"""Policies that are Python functions or objects."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
import traceback
from collections.abc import Callable
from importlib.machinery import PathFinder
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, PRNGKeyArray, Shaped

from vlbm.errors import InputError, first_line
from vlbm.policies.base import HostPolicy, Policy, TracedPolicy

SPECIFICATION = re.compile(r"(?P<module>[^\W\d]\w*(\.[^\W\d]\w*)*):(?P<name>[^\W\d]\w*(\.[^\W\d]\w*)*)")


class FunctionPolicy(HostPolicy):
    """A function `act(observations[batch, obs]) -> actions`; a random one also has `draw`, which may take a
    JAX `key` to draw by."""

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
        self._keyed = draw is not None and _accepts(draw, "key")
        self.observation_size = observation_size
        self.action_size = action_size
        self.discrete = discrete

    def mean(self, observation: Float[np.ndarray, "batch obs"]) -> Shaped[np.ndarray, " batch *act"]:
        return self._call(self._act, observation)

    def sample(
        self, observation: Float[np.ndarray, "batch obs"], *, key: PRNGKeyArray
    ) -> Shaped[np.ndarray, " batch *act"]:
        if self._draw is None:
            return self.mean(observation)
        return self._call(self._draw, observation, **({"key": key} if self._keyed else {}))

    def _call(self, function: Callable[..., Any], observation: Any, **options: Any) -> Any:
        seen = np.asarray(observation)
        try:
            return function(seen, **options)
        except InputError:
            raise
        except Exception as error:  # whatever the user's code raises
            raise InputError(
                f"a policy's function failed on observations of shape {seen.shape} ({_describe(error)}); it "
                "must take many observations at once, one a row"
            ) from error


def _describe(error: Exception) -> str:
    """What it says, and the line that raised it."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {first_line(error)}, {last.filename}, line {last.lineno}"


def as_policy(candidate: Any, *, name: str = "policy") -> Policy:
    """A policy from a policy, an object with `mean`, `sample` or `predict`, or a function."""
    if isinstance(candidate, type):
        raise InputError(f"{name} is the class {candidate.__name__}; give an instance of it, or a function")
    if isinstance(candidate, TracedPolicy | HostPolicy):
        return candidate
    mean, sample, predict = (_find_method(candidate, method) for method in ("mean", "sample", "predict"))
    if isinstance(candidate, Policy) and sample is not None and _accepts(sample, "key"):
        return candidate
    if predict is not None and mean is None:
        mean, sample = (_wrap_predict(predict, deterministic) for deterministic in (True, False))
    if mean is None and sample is None:
        if callable(candidate):
            return FunctionPolicy(candidate)
        raise InputError(
            f"{name} is a {type(candidate).__name__}; a policy is a function, or has mean, sample or predict"
        )
    act = mean or (lambda observation: sample(observation))  # type: ignore[misc]
    sizes = {size: getattr(candidate, size, None) for size in ("observation_size", "action_size", "discrete")}
    policy = FunctionPolicy(act, draw=sample, **sizes)
    if _find_method(candidate, "log_prob") is not None:
        policy.log_prob = candidate.log_prob  # type: ignore[attr-defined]
    return policy


def _find_method(candidate: Any, name: str) -> Callable[..., Any] | None:
    found = getattr(candidate, name, None)
    return found if callable(found) else None


def _accepts(function: Callable[..., Any], parameter: str) -> bool:
    """Whether a function takes an argument of that name; assumed if the signature is unknown."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return True
    return parameter in parameters or any(
        found.kind is inspect.Parameter.VAR_KEYWORD for found in parameters.values()
    )


def _wrap_predict(predict: Callable[..., Any], deterministic: bool) -> Callable[[Any], Any]:
    """An act function from `predict`, which in Stable-Baselines3 returns (action, state)."""
    options = {"deterministic": deterministic} if _accepts(predict, "deterministic") else {}

    def act(observation: Any) -> Any:
        answer = predict(observation, **options)
        return answer[0] if isinstance(answer, tuple) else answer

    return act


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
    _forget_namesake(match["module"].partition(".")[0], folder)
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


def _forget_namesake(name: str, folder: str) -> None:
    """Forget a loaded module that an earlier current folder had under a name that this one has, too.

    Notebooks change folders; what Python finds on its path by itself stays.
    """
    loaded, found = sys.modules.get(name), PathFinder.find_spec(name, [folder])
    if loaded is None or found is None or found.origin is None or name in sys.stdlib_module_names:
        return
    place = Path(getattr(loaded, "__file__", None) or "?")
    if place == Path(found.origin):
        return
    home = place.parent.parent if place.name == "__init__.py" else place.parent
    if str(home) in sys.path:
        return
    for other in [other for other in sys.modules if other.partition(".")[0] == name]:
        del sys.modules[other]
