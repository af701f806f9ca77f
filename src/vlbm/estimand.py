"""Estimand: which return is estimated, so that methods and the truth are compared on the same quantity."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from vlbm.errors import InputError

Actions = Literal["mean", "sample"]
# As users give it: steps, math.inf for no time limit, None for as long as the longest logged episode.
Horizon = int | float | None
ACTION_SENTENCES = {"mean": "policies act by their mean", "sample": "policies sample their actions"}
ACTION_WORDS = {"mean": "mean", "sample": "sampled"}
LONGEST = 10**9  # steps that a horizon can have


@dataclass(frozen=True)
class Estimand:
    """The discounted return of at most `horizon` steps, under mean or sampled actions.

    Args:
        discount: Weight of the next step's reward.
        horizon: Steps that count; None has no time limit.
        actions: Whether policies act by their `mean` or `sample`.
    """

    discount: float
    horizon: int | None
    actions: Actions

    def __post_init__(self) -> None:
        if self.actions not in get_args(Actions):
            raise InputError(f"actions {self.actions}: must be one of {', '.join(get_args(Actions))}")
        if not 0 < self.discount <= 1:
            raise InputError(f"discount {self.discount}: must be above 0 and at most 1")
        if self.horizon is None and self.discount == 1:
            raise InputError(
                "discount 1: without a horizon values need not be finite; give a horizon, or a discount "
                "below 1"
            )
        if self.horizon is not None and not 1 <= self.horizon <= LONGEST:
            bound = (
                f"at most {LONGEST:,}, or inf for no time limit" if self.horizon > LONGEST else "at least 1"
            )
            raise InputError(f"horizon {self.horizon}: must be {bound}")

    @classmethod
    def from_request(cls, *, discount: float, horizon: Horizon, actions: Actions, longest: int) -> Estimand:
        """From the arguments of `evaluate`.

        Args:
            discount: Weight of the next step's reward.
            horizon: Steps, `math.inf`, or None for the longest logged episode.
            actions: `mean` or `sample`.
            longest: Steps of the longest logged episode.
        """
        steps = longest if horizon is None else horizon
        if steps == math.inf:
            return cls(discount, None, actions)
        if steps >= 1 and steps != int(steps):
            raise InputError(f"horizon {steps}: must be a whole number of steps, or inf for no time limit")
        return cls(discount, int(steps) if steps >= 1 else steps, actions)  # type: ignore[arg-type]  # refused

    @property
    def infinite_horizon(self) -> bool:
        return self.horizon is None

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of `evaluate` that request it."""
        horizon = math.inf if self.horizon is None else self.horizon
        return {"discount": self.discount, "horizon": horizon, "actions": self.actions}

    def __str__(self) -> str:
        return (
            f"{_describe_horizon(self.horizon)}, discount {self.discount:g}, {ACTION_SENTENCES[self.actions]}"
        )

    def describe_difference(self, requested: Estimand) -> str:
        """How it differs from the requested estimand, in a few words; empty if it does not."""
        found = []
        if self.actions != requested.actions:
            found.append(ACTION_WORDS[self.actions])
        if self.horizon != requested.horizon:
            found.append("endless" if self.horizon is None else f"{self.horizon:,} steps")
        if self.discount != requested.discount:
            found.append(f"discount {self.discount:g}")
        return ", ".join(found)

    def to_json(self) -> dict[str, Any]:
        """A horizon of null has no time limit."""
        return {**vars(self), "text": str(self)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Estimand:
        return cls(values["discount"], values["horizon"], values["actions"])


def _describe_horizon(horizon: int | None) -> str:
    if horizon is None:
        return "return without a time limit"
    return "return of the first step" if horizon == 1 else f"return of the first {horizon:,} steps"
