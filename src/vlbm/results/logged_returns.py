"""LoggedReturns: between which returns, like the estimated ones, the log lies."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Self

from vlbm.data.episodes import Episodes
from vlbm.estimand import Estimand


@dataclass(frozen=True)
class LoggedReturns:
    """The ends of the logged returns, and how often logged episodes terminated."""

    lowest: float | None  # None where episodes that were cut off say nothing about endless ones
    highest: float | None
    terminated: float  # share of the episodes

    @classmethod
    def of(cls, episodes: Episodes, estimand: Estimand) -> Self:
        """Returns at the discount and the horizon of the estimand."""
        terminated = float(episodes.terminated.mean())
        if estimand.infinite_horizon and terminated < 1:
            return cls(None, None, terminated)
        returns = episodes.returns(estimand.discount, horizon=estimand.horizon)
        return cls(float(returns.min()), float(returns.max()), terminated)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
