"""Validation of policies against the data, and of the actions they return."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Shaped

from vlbm.errors import InputError
from vlbm.policies.base import HostPolicy, Policy
from vlbm.policies.scores import read_scores


def check_fit(
    policies: Mapping[str, Policy], *, observation_size: int, action_size: int, discrete: bool
) -> dict[str, Policy]:
    """The policies as they act on such data; the first whose sizes differ is refused, unknown ones are not.

    Of files whose actions are discrete only where the data say so, it is here that a number for every action
    is taken for probabilities or logits.
    """
    for name, policy in policies.items():
        if policy.observation_size not in (None, observation_size):
            raise InputError(
                f"policy '{name}' wants {policy.observation_size} observations, "
                f"the data have {observation_size}"
            )
        kind = getattr(policy, "discrete", None)
        if kind not in (None, discrete):
            raise InputError(
                f"policy '{name}' gives {_describe_actions(policy.action_size, bool(kind))}, "
                f"the data have {_describe_actions(action_size, discrete)}"
            )
        if policy.action_size not in (None, action_size):
            raise InputError(
                f"policy '{name}' gives {_describe_actions(policy.action_size, discrete)}, "
                f"the data have {_describe_actions(action_size, discrete)}"
            )
    return {
        name: read_scores(
            policy, observation_size=observation_size, action_size=action_size, name=f"policy '{name}'"
        )
        if discrete and isinstance(policy, HostPolicy) and policy.may_give_scores
        else policy
        for name, policy in policies.items()
    }


def check_actions(
    name: str, action: Any, *, batch: int, action_size: int | None, discrete: bool
) -> Shaped[np.ndarray, " batch *act"]:
    """The actions as float32 vectors or int32 ids, or an error that names the policy."""
    try:
        values = np.asarray(action)
    except ValueError as error:
        raise InputError(f"policy '{name}' gave actions that form no array ({error})") from error
    if values.dtype.kind not in "fiub":
        raise InputError(f"policy '{name}' gave actions of type {values.dtype}, not numbers")
    if discrete and values.shape == (batch, 1):
        values = values[:, 0]
    if not discrete and values.shape == (batch,) and action_size == 1:
        if values.dtype.kind != "f":
            raise InputError(
                f"policy '{name}' gave whole numbers, one for each observation, as ids of discrete actions "
                f"are; the data have {_describe_actions(action_size, discrete)}: give floats"
            )
        values = values[:, None]
    size = action_size if action_size is not None else values.shape[-1] if values.ndim else 1
    expected = (batch,) if discrete else (batch, size)
    if values.shape != expected:
        wanted = "one id per observation" if discrete else "one vector per observation"
        raise InputError(
            f"policy '{name}' gave actions of shape {values.shape}, expected {expected}: {wanted}"
        )
    wrong = ~np.isfinite(values)
    if wrong.any():
        row = int(np.argwhere(wrong)[0, 0])
        raise InputError(
            f"policy '{name}' gave an action that is not finite, for observation {row} of {batch}"
        )
    if not discrete:
        return values.astype(np.float32)
    ids = values.astype(np.int32)
    if (ids != values).any():
        raise InputError(f"policy '{name}' gave the action {values[ids != values][0]}, not a whole number")
    if action_size is not None and ((ids < 0) | (ids >= action_size)).any():
        outside = ids[(ids < 0) | (ids >= action_size)][0]
        raise InputError(f"policy '{name}' chose action {outside}, the data have 0 to {action_size - 1}")
    return ids


def _describe_actions(size: int | None, discrete: bool) -> str:
    count = "" if size is None else f"{size} "
    return f"{count}discrete actions" if discrete else f"action vectors of {count or 'some '}numbers"
