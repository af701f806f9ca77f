"""What a search would have chosen had it seen the truth: an ablation, which says what that is worth.

Nothing else may use it: settings are chosen by logged episodes alone (`select`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

ORACLE, TRUTH_FREE = "oracle", "truth-free"


@dataclass(frozen=True)
class Judged:
    """A candidate with the score that a search sees, and what only an oracle sees."""

    settings: Any
    steps: int
    score: float  # lower is better; infinite where training diverged
    rank_correlation: float
    regret: float
    absolute_error: float


@dataclass(frozen=True)
class Gap:
    """What a search chose, and what the oracle would have chosen of the same candidates."""

    chosen: Judged
    by_rank: Judged
    by_error: Judged

    def rows(self) -> list[tuple[str, Judged]]:
        """For tables; every choice that saw the truth says so."""
        return [
            (TRUTH_FREE, self.chosen),
            (f"{ORACLE}, by rank", self.by_rank),
            (f"{ORACLE}, by error", self.by_error),
        ]


def measure_gap(judged: Sequence[Judged]) -> Gap:
    """The choice of a search is among those that were trained the longest, the oracle's among all."""
    longest = max(one.steps for one in judged)
    return Gap(
        chosen=min((one for one in judged if one.steps == longest), key=lambda one: one.score),
        by_rank=min(judged, key=lambda one: (-_known(one.rank_correlation), one.absolute_error)),
        by_error=min(judged, key=lambda one: (_known(one.absolute_error, worst=math.inf),)),
    )


def _known(value: float, *, worst: float = -math.inf) -> float:
    """What failed has no value, and is nobody's choice."""
    return worst if math.isnan(value) else value
