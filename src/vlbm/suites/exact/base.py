"""The interface of systems with exactly known policy values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from jaxtyping import Float, Int, Shaped

from vlbm.data.episodes import Episodes
from vlbm.errors import InputError

# Value functions V and Q, row by row, at the given time of an episode (from 0), which is ignored for an
# infinite horizon.
StateFunction = Callable[
    [Float[np.ndarray, "batch obs"], Int[np.ndarray, " batch"]], Float[np.ndarray, " batch"]
]
ActionFunction = Callable[
    [Float[np.ndarray, "batch obs"], Shaped[np.ndarray, " batch *act"], Int[np.ndarray, " batch"]],
    Float[np.ndarray, " batch"],
]


class ExactSystem(Protocol):
    """A system with a behaviour policy and target policies, which act by sampling.

    `horizon` and `discount` are the system's own; methods take others. A horizon of None means that
    an episode goes on until it terminates.
    """

    @property
    def name(self) -> str: ...
    @property
    def discount(self) -> float: ...
    @property
    def horizon(self) -> int: ...
    @property
    def behaviour(self) -> Any: ...
    @property
    def targets(self) -> Mapping[str, Any]: ...

    def sample(self, policy: Any, *, episodes: int, seed: int, horizon: int | None = None) -> Episodes:
        """Logged episodes with true log-probabilities, cut off at `horizon` (default: the system's)."""

    def value(self, policy: Any, *, discount: float, horizon: int | None) -> float:
        """The expected discounted return."""

    def state_function(self, policy: Any, *, discount: float, horizon: int | None) -> StateFunction:
        """V, the expected discounted return from an observation on."""

    def action_function(self, policy: Any, *, discount: float, horizon: int | None) -> ActionFunction:
        """Q, the same after a given action."""


def true_values(system: ExactSystem, *, discount: float, horizon: int | None) -> dict[str, float]:
    """The value of every target policy."""
    return {
        name: system.value(policy, discount=discount, horizon=horizon)
        for name, policy in system.targets.items()
    }


def check_discount(*, discount: float, horizon: int | None) -> None:
    if not 0 <= discount <= 1:
        raise InputError(f"discount {discount}: must lie between 0 and 1")
    if horizon is not None and horizon < 1:
        raise InputError(f"horizon {horizon}: must be at least 1, or None for no limit")
