"""Task: logged episodes, target policies and their true values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from vlbm.data.episodes import Episodes
from vlbm.policies.base import Policy


@dataclass(frozen=True)
class Entry:
    """Metadata of a task, known without loading it."""

    name: str  # as the user writes it: 'hopper-medium', 'dope/hopper-medium'
    suite: str
    environment: str  # Gymnasium's id, or D4RL's
    dataset: str  # 'random', 'medium', ...
    steps: int  # logged steps
    observation_size: int
    action_size: int
    policies: int
    about: str  # one sentence
    available: bool  # True if loading needs neither simulation nor a file that is not there


@dataclass(frozen=True, eq=False)
class Task:
    """A problem with a known answer. The truth scores estimates; nothing is trained or chosen by it.

    Attributes:
        name: As the user writes it.
        episodes: The logged episodes.
        policies: The candidates, by name.
        truth: Their true values, with the discount, horizon and actions below.
        discount: Of the truth.
        horizon: Of the truth.
        actions: How policies act for the truth.
        regenerated: True where the data only look like the published ones.
    """

    name: str
    episodes: Episodes
    policies: Mapping[str, Policy]
    truth: Mapping[str, float]
    discount: float
    horizon: int
    actions: Literal["mean", "sample"] = "mean"
    regenerated: bool = False

    @property
    def label(self) -> str:
        """What tables call it."""
        return f"{self.name} (regenerated)" if self.regenerated else self.name
