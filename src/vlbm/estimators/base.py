"""What every estimator and every evaluator offers."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

from vlbm.compilation import enable_compilation_cache
from vlbm.data.episodes import Episodes
from vlbm.errors import InputError
from vlbm.estimand import Actions, Estimand, Horizon
from vlbm.estimators.shared_cache import SharedCache, no_cache
from vlbm.policies.base import Policy
from vlbm.policies.checks import check_fit
from vlbm.policies.function import as_policy
from vlbm.progress import Progress, silent
from vlbm.results.estimate import CONFIDENCE, Estimate, Estimates
from vlbm.worlds.rollout import Termination

SAMPLED = (
    "it answers for sampled actions, though mean ones were asked for: where actions are continuous, a mean "
    "action has no importance weight"
)
# Called with the episodes that every policy had in one of the worlds, by the number of the world.
Recorder = Callable[[int, Mapping[str, Episodes]], None]


@dataclass(frozen=True, eq=False)
class Request:
    """What is asked of an evaluator: which policies, and what their value shall mean."""

    policies: Mapping[str, Policy]
    estimand: Estimand
    episodes: int = 50
    termination: Termination | None = None
    confidence: float = CONFIDENCE  # with which intervals shall hold the value
    seed: int = 0
    progress: Progress = silent
    recorder: Recorder | None = None

    @property
    def discount(self) -> float:
        return self.estimand.discount

    @property
    def horizon(self) -> int | None:
        """None: without a time limit."""
        return self.estimand.horizon

    @property
    def actions(self) -> Actions:
        return self.estimand.actions


class Answer(NamedTuple):
    """Estimates in the order of the request, how they came about, and what speaks against all of them."""

    rows: tuple[Estimate, ...]
    circumstances: Mapping[str, Any]  # beside the settings: the horizon and the actions that were used
    warnings: tuple[str, ...] = ()
    interrupted: bool = False  # True if Ctrl-C cut the training short


class Space(Protocol):
    """What policies see and do, and for how long; logged episodes have one."""

    @property
    def observation_size(self) -> int: ...
    @property
    def action_size(self) -> int: ...
    @property
    def discrete(self) -> bool: ...
    @property
    def longest(self) -> int:
        """Steps of the longest logged episode."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Evaluator(ABC):
    """Ready to evaluate any policy; `Estimator.fit` makes it."""

    settings: Any
    seed: int
    data: Mapping[str, Any]  # which data it was fitted to: path, episodes, steps
    notes: tuple[str, ...] = ()  # what speaks against every estimate it makes
    seconds: float = 0.0  # that fitting took

    @property
    def method(self) -> str:
        """The short name that users know it by."""
        return self.settings.method

    def evaluate(
        self,
        policies: Mapping[str, Any] | Any,
        *,
        discount: float = 0.995,
        gamma: float | None = None,
        horizon: Horizon = None,
        episodes: int = 50,
        actions: Actions = "mean",
        termination: Termination | None = None,
        confidence: float = CONFIDENCE,
        seed: int | None = None,
        progress: Progress = silent,
        recorder: Recorder | None = None,
    ) -> Estimates:
        """The value of every policy, with an interval that shall hold it with probability `confidence`.

        A policy is one of `vlbm.policies`, a function from observations to actions, or an object with `mean`,
        `sample` or `predict`. `gamma` is another name for the discount. The value is that of the first
        `horizon` steps, by default as many as the longest logged episode has; `math.inf` sets no limit.
        `episodes`, `actions` and `termination` say how policies act in an imagined world, and `recorder`
        is shown what they did there; evaluators that imagine none take them too and leave them unused,
        so that all are called alike.
        """
        discount = discount if gamma is None else gamma
        check_request(discount=discount, horizon=horizon, episodes=episodes, confidence=confidence)
        given = policies if isinstance(policies, Mapping) else {"policy": policies}
        named = {name: as_policy(policy, name=f"policy '{name}'") for name, policy in given.items()}
        if not named:
            raise InputError("no policies were given")
        space = self.space
        check_fit(
            named,
            observation_size=space.observation_size,
            action_size=space.action_size,
            discrete=space.discrete,
        )
        asked = Estimand.from_request(
            discount=discount, horizon=horizon, actions=actions, longest=space.longest
        )
        estimand = self.settings.check_estimand(asked, space)
        seed = self.seed if seed is None else seed
        began = time.monotonic()
        answer = self.answer(
            Request(named, estimand, episodes, termination, confidence, seed, progress, recorder)
        )
        return Estimates(
            rows=answer.rows,
            method=self.method,
            seed=seed,
            estimand=estimand,
            confidence=confidence,
            settings={**flatten_settings(asdict(self.settings)), **answer.circumstances},
            data=self.data,
            seconds={"fit": self.seconds, "evaluate": time.monotonic() - began},
            warnings=(*self.notes, *([] if estimand == asked else [SAMPLED]), *answer.warnings),
            interrupted=answer.interrupted,
        )

    @property
    @abstractmethod
    def space(self) -> Space:
        """What policies must see and do to be evaluated."""

    @abstractmethod
    def answer(self, request: Request) -> Answer:
        """Estimates for a request that has been checked."""


Fitted = TypeVar("Fitted", bound=Evaluator, covariant=True)


class Run(NamedTuple):
    """A fit: its seed, where it keeps checkpoints, whether it resumes them, who reports progress, and what it
    has in common with other fits to the same data."""

    seed: int = 0
    directory: Path | None = None
    resume: bool = False
    progress: Progress = silent
    cache: SharedCache = no_cache


class Estimator(ABC, Generic[Fitted]):
    """Settings of a method: subclasses are frozen dataclasses."""

    method: Any  # a field or a property: what tables call it
    answers_infinite_horizon: ClassVar[bool] = True  # whether it can do without a time limit
    weighs_actions: ClassVar[bool] = False  # by how likely policies were to take them

    def check_estimand(self, asked: Estimand, space: Space) -> Estimand:
        """What it estimates when asked for this: the same, or what comes nearest; an error if it cannot.

        Importance weights of a mean action exist only where actions are discrete: elsewhere methods that
        weigh actions answer for sampled ones.
        """
        if asked.infinite_horizon and not self.answers_infinite_horizon:
            raise InputError(
                f"horizon inf: {self.method} cannot answer without a time limit; give a horizon (--horizon), "
                "or use fqe, dice or vpm"
            )
        if self.weighs_actions and asked.actions == "mean" and not space.discrete:
            return replace(asked, actions="sample")
        return asked

    def fit(
        self,
        episodes: Episodes,
        *,
        seed: int = 0,
        directory: str | Path | None = None,
        resume: bool = False,
        progress: Progress = silent,
        cache: SharedCache = no_cache,
    ) -> Fitted:
        """Learn what can be learnt before the policies are known.

        What takes long keeps checkpoints in the directory, if one is given, and can be resumed there.
        What another method with the same cache has made in the same way is taken from it.
        """
        enable_compilation_cache()
        began = time.monotonic()
        place = None if directory is None else Path(directory)
        learnt = self.learn(episodes, Run(seed, place, resume, progress, cache))
        return replace(learnt, seconds=time.monotonic() - began)

    @abstractmethod
    def learn(self, episodes: Episodes, run: Run) -> Fitted:
        """The evaluator that `fit` returns."""


def describe_data(episodes: Episodes) -> dict[str, Any]:
    """Which data these are, as estimates say it."""
    return {"path": None, "episodes": episodes.count, "steps": episodes.steps}


def check_request(
    *, discount: float, horizon: Horizon, episodes: int, confidence: float = CONFIDENCE
) -> None:
    """Refuse what cannot be evaluated."""
    if not 0 < discount <= 1:
        raise InputError(f"discount {discount}: must be above 0 and at most 1")
    if episodes < 1:
        raise InputError(f"episodes {episodes}: must be at least 1")
    if not 0 < confidence < 1:
        raise InputError(f"confidence {confidence}: must be above 0 and below 1, such as {CONFIDENCE}")
    if horizon == math.inf and discount == 1:
        raise InputError(
            "discount 1: without a horizon values need not be finite; give a horizon, or a discount below 1"
        )
    if horizon is None or horizon == math.inf:
        return
    if not horizon >= 1:
        raise InputError(f"horizon {horizon}: must be at least 1")
    if horizon != int(horizon):
        raise InputError(f"horizon {horizon}: must be a whole number of steps, or inf for no time limit")


def flatten_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as JSON keeps them, so that a saved and a fresh copy compare equal; nested ones get a dot."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}.{inner}": content for inner, content in flatten_settings(value).items()}
        else:
            flat[name] = list(value) if isinstance(value, tuple) else value
    return flat
