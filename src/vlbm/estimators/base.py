"""What every estimator and every evaluator offers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from vlbm.episodes import Episodes
from vlbm.errors import InputError
from vlbm.estimate import Estimates
from vlbm.policies.base import Policy
from vlbm.policies.checks import check_fit
from vlbm.progress import Progress, silent
from vlbm.rollout import Actions, Termination


class Evaluator(Protocol):
    """Ready to evaluate any policy: a frozen dataclass that `Estimator.fit` made."""

    @property
    def method(self) -> str:
        """The short name that users know it by."""

    @property
    def data(self) -> Mapping[str, Any]:
        """Which data it was fitted to: path, episodes, steps."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What speaks against every estimate it makes."""

    def evaluate(
        self,
        policies: Mapping[str, Policy] | Policy,
        *,
        discount: float = 0.995,
        horizon: int | None = None,
        episodes: int = 50,
        actions: Actions = "mean",
        termination: Termination | None = None,
        seed: int | None = None,
        progress: Progress = silent,
    ) -> Estimates:
        """The value of every policy.

        `episodes`, `actions` and `termination` say how policies act in an imagined world; evaluators
        that imagine none take them too and leave them unused, so that all are called alike.
        """


class Estimator(Protocol):
    """Settings of a method, as a frozen dataclass."""

    def fit(
        self,
        episodes: Episodes,
        *,
        seed: int = 0,
        directory: str | Path | None = None,
        resume: bool = False,
        progress: Progress = silent,
    ) -> Evaluator:
        """Learn what can be learnt before the policies are known."""


def named_policies(policies: Mapping[str, Policy] | Policy, logged: Episodes) -> dict[str, Policy]:
    """The policies by name, or an error if there are none or one does not fit the logged episodes."""
    named = dict(policies) if isinstance(policies, Mapping) else {"policy": policies}
    if not named:
        raise InputError("no policies were given")
    check_fit(
        named,
        observation_size=logged.observation_size,
        action_size=logged.action_size,
        discrete=logged.discrete,
    )
    return named


def check_request(*, discount: float, horizon: int | None, episodes: int) -> None:
    """Refuse what cannot be evaluated."""
    if not 0 < discount <= 1:
        raise InputError(f"discount {discount}: must be above 0 and at most 1")
    if episodes < 1:
        raise InputError(f"episodes {episodes}: must be at least 1")
    if horizon is not None and horizon < 1:
        raise InputError(f"horizon {horizon}: must be at least 1")
