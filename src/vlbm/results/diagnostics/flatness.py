"""Flatness: policies that differ in what they do, and get the same value all the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from vlbm.data.episodes import Episodes
from vlbm.policies.base import Policy
from vlbm.policies.tabulate import tabulate_actions
from vlbm.results.backtest import measure_spread
from vlbm.results.estimates import Estimates

FLAT = 0.05  # range of the values, as a share of the spread of logged returns or of the median interval
DIFFERENT = 0.05  # deviation between policies relative to the size of actions
LOOKED_AT = 64  # observations


def warn_if_flat(
    found: Estimates,
    policies: Mapping[str, Policy],
    observation: Float[np.ndarray, "rows obs"] | None,
    *,
    log: Episodes,
    space: Any,
) -> Estimates:
    """The estimates, with a warning if all values are nearly the same though policies act differently.

    What they do is looked up at the observations; `space` says what actions are.
    """
    if observation is None or len(found) < 2:
        return found
    extent = float(np.ptp(found.values))
    returns = log.returns(found.discount, horizon=found.estimand.horizon)
    width = float(np.median([row.upper - row.lower for row in found]))
    scale = max(measure_spread(returns), width)
    if extent > FLAT * scale or scale == 0 or not differ(policies, observation, space=space):
        return found
    text = (
        f"all {len(found)} policies get nearly the same value (within {extent:.3g}) though they act "
        "differently: either they are equally good, or the method sees no difference; do not rank by it"
    )
    return replace(found, warnings=(*found.warnings, text))


def differ(policies: Mapping[str, Policy], observation: Float[np.ndarray, "rows obs"], *, space: Any) -> bool:
    """Whether the mean actions of some policies differ at the observations."""
    action = tabulate_actions(
        policies,
        np.asarray(observation[:LOOKED_AT], np.float32),
        action_size=space.action_size,
        discrete=space.discrete,
        actions="mean",
        draws=1,
        key=jax.random.key(0),
    )[0]
    size = float(np.sqrt(np.square(action).mean()))
    return bool(action.std(axis=1).mean() > DIFFERENT * size)
