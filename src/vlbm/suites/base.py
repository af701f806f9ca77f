"""Task: logged episodes, target policies and what these are truly worth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vlbm.episodes import Episodes
from vlbm.policies.base import Policy


@dataclass(frozen=True, eq=False)
class Task:
    """A problem with a known answer. The truth scores estimates; nothing is trained or chosen by it."""

    name: str
    episodes: Episodes
    policies: Mapping[str, Policy]
    truth: Mapping[str, float]  # discounted return of every policy, by its mean action
    discount: float
    horizon: int
