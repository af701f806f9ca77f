"""What every estimator and every evaluator offers."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np
from jaxtyping import Float

from vlbm.compilation import enable_compilation_cache
from vlbm.data.episodes import Episodes
from vlbm.directories import claim_directory
from vlbm.errors import InputError
from vlbm.estimand import Actions, Estimand, Horizon
from vlbm.estimators.backtest import add_backtest
from vlbm.estimators.likelihood import check_has_log_prob
from vlbm.estimators.shared_cache import SharedCache, no_cache
from vlbm.policies.base import Policy, has_log_prob
from vlbm.policies.checks import check_fit
from vlbm.policies.function import as_policy
from vlbm.progress import Progress, as_progress, silent
from vlbm.results.behaviour import hold_against_log
from vlbm.results.diagnostics.flatness import warn_if_flat
from vlbm.results.estimate import CONFIDENCE, Estimate
from vlbm.results.estimates import Estimates, Origin
from vlbm.results.feasible import feasible_range
from vlbm.results.logged_returns import LoggedReturns
from vlbm.worlds.rollout import Termination

SAMPLED = (
    "it answers for sampled actions, though mean ones were asked for: where actions are continuous, a mean "
    "action has no importance weight"
)
NO_LOG_PROB = "without log-probabilities, which importance weights are made of"
# Called with the episodes that every policy had in one of the worlds, by the number of the world.
Recorder = Callable[[int, Mapping[str, Episodes]], None]


class Space(NamedTuple):
    """What policies see and do, and for how long; logged episodes say it too."""

    observation_size: int
    action_size: int
    discrete: bool
    longest: int  # steps of the longest logged episode


@dataclass(frozen=True, eq=False, kw_only=True)
class Evaluator(ABC):
    """Ready to evaluate any policy; `Estimator.fit` makes it."""

    settings: Any
    seed: int
    data: Mapping[str, Any] = field(default_factory=dict)  # that it was fitted to: path, episodes, steps
    notes: tuple[str, ...] = ()  # what speaks against every estimate it makes
    seconds: float = 0.0  # that fitting took
    # The data it was fitted to: pages and verdicts hold estimates against them. Saved models are without.
    log: Episodes | None = field(default=None, repr=False)
    cache: SharedCache = field(default=no_cache, repr=False)  # what is made for other methods too

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
        progress: Progress | bool = silent,
        recorder: Recorder | None = None,
        backtest: bool | None = None,
    ) -> Estimates:
        """The value of every policy, with an interval.

        Methods that learn no world leave `episodes`, `termination` and `recorder` unused. Estimates stay
        within what rewards like the logged ones can add up to, and policies that the method cannot value are
        left out (`Estimates.excluded`).

        Args:
            policies: By name: policies of `vlbm.policies`, functions from observations to actions, or objects
                with `mean`, `sample` or `predict`; or a single one.
            discount: Weight of the next step's reward, above 0 and at most 1.
            gamma: Another name for the discount.
            horizon: Steps that count; `math.inf` for no time limit. By default as many as the longest logged
                episode has.
            episodes: Imagined episodes per policy and model.
            actions: `mean`: policies act by their mean or likeliest action; `sample`: they draw.
            termination: A rule you know: takes observations `[batch, obs]` and says which of them end an
                episode.
            confidence: How surely the interval shall hold the value.
            seed: The same seed gives the same numbers; by default that of the fit.
            progress: Who reports progress; True shows bars.
            recorder: Called with the imagined episodes of every policy, by the number of the model.
            backtest: Clone the behaviour policy, value it too, and hold that against logged episodes
                (`Estimates.backtest`); a model that was loaded has none. By default when a page is made.
        """
        discount = discount if gamma is None else gamma
        check_request(discount=discount, horizon=horizon, episodes=episodes, confidence=confidence)
        given = policies if isinstance(policies, Mapping) else {"policy": policies}
        named = {name: as_policy(policy, name=f"policy '{name}'") for name, policy in given.items()}
        if not named:
            raise InputError("no policies were given")
        space = self.space
        named = check_fit(
            named,
            observation_size=space.observation_size,
            action_size=space.action_size,
            discrete=space.discrete,
        )
        asked = Estimand.from_request(
            discount=discount, horizon=horizon, actions=actions, longest=space.longest
        )
        estimand = self.settings.check_estimand(asked, space)
        excluded = self.settings.exclude(named, estimand)
        kept = {name: policy for name, policy in named.items() if name not in excluded}
        seed = self.seed if seed is None else seed
        began, shown = time.monotonic(), as_progress(progress)
        imagined: Any = {"episodes": episodes, "termination": termination, "seed": seed}
        rows, warnings, interrupted = self.estimate(
            kept, estimand, confidence=confidence, progress=shown, recorder=recorder, **imagined
        )

        def test(estimates: Estimates) -> Estimates:
            return add_backtest(estimates, evaluator=self, asked=asked, progress=shown, **imagined)

        found = Estimates(
            rows=tuple(rows),
            method=self.method,
            seed=seed,
            estimand=estimand,
            confidence=confidence,
            settings={
                **flatten_settings(asdict(self.settings)),
                "horizon": estimand.horizon,
                "actions": estimand.actions,
                **({"episodes": episodes} if self.settings.imagines else {}),
            },
            data=self.data,
            warnings=tuple(warnings),
            interrupted=interrupted,
            excluded=excluded,
            logged=None if self.log is None else LoggedReturns.of(self.log, estimand),
            origin=Origin(
                self,
                named,
                {
                    "discount": discount,
                    "horizon": horizon,
                    "actions": actions,
                    "confidence": confidence,
                    **imagined,
                },
                test if backtest is None and not interrupted else None,
            ),
        )
        if self.rewards is not None:
            bounds = self.settings.bounds or feasible_range(
                self.rewards, estimand, can_end=termination is not None
            )
            found = hold_against_log(found, self.rewards, bounds=bounds)
            found = warn_if_flat(found, kept, self.initial_observations, log=self.rewards, space=space)
        replaced = [] if estimand == asked else [SAMPLED]
        found = replace(
            found,
            seconds={"fit": self.seconds, "evaluate": time.monotonic() - began},
            warnings=(*self.notes, *replaced, *describe_excluded(excluded), *found.warnings),
        )
        return test(found) if backtest and not interrupted else found

    @property
    def rewards(self) -> Episodes | None:
        """The logged episodes, of which some saved models keep nothing but rewards."""
        return self.log

    @property
    def initial_observations(self) -> Float[np.ndarray, "starts obs"] | None:
        """Where logged episodes began; None if that is not known."""
        return None if self.log is None else self.log.initial_observations()

    @property
    def space(self) -> Space | Episodes:
        """What policies must see and do to be evaluated."""
        assert self.log is not None  # saved models say it themselves
        return self.log

    @abstractmethod
    def estimate(
        self,
        policies: Mapping[str, Policy],
        estimand: Estimand,
        *,
        confidence: float,
        seed: int,
        progress: Progress,
        episodes: int,
        termination: Termination | None,
        recorder: Recorder | None,
    ) -> tuple[list[Estimate], list[str], bool]:
        """A row for every policy, warnings about all rows, and whether training was interrupted.

        All has been checked; a method names what it needs, and takes the rest as `_`.
        """


Fitted = TypeVar("Fitted", bound=Evaluator, covariant=True)


class Estimator(ABC, Generic[Fitted]):
    """Settings of a method: subclasses are frozen dataclasses, and `fit` makes them an `Evaluator`."""

    imagines: ClassVar[bool] = False  # whether policies act in worlds that it has learnt
    answers_infinite_horizon: ClassVar[bool] = True  # whether it can do without a time limit
    weighs_actions: ClassVar[bool] = False  # by how likely policies were to take them
    bounds: Any = None  # of the discounted return, where settings know them

    @property
    @abstractmethod
    def method(self) -> str:
        """What tables call it."""

    def check_estimand(self, asked: Estimand, space: Space | Episodes) -> Estimand:
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

    def exclude(self, policies: Mapping[str, Policy], estimand: Estimand) -> dict[str, str]:
        """Policies that it cannot value though it values others, and why; told before anything is trained.

        `estimand` is what it answers for: sampled actions of a policy without log-probabilities have no
        weight. If none is left, that is an error.
        """
        if not self.weighs_actions or estimand.actions == "mean":
            return {}
        found = {name: NO_LOG_PROB for name, policy in policies.items() if not has_log_prob(policy)}
        if len(found) == len(policies):
            check_has_log_prob(*next(iter(policies.items())))
        return found

    def fit(
        self,
        episodes: Episodes,
        *,
        seed: int = 0,
        directory: str | Path | None = None,
        resume: bool = False,
        progress: Progress | bool = silent,
        cache: SharedCache = no_cache,
    ) -> Fitted:
        """Learn what can be learnt before the policies are known; `progress=True` shows bars.

        What takes long keeps checkpoints in the directory, if one is given, and can be resumed there. A
        directory that holds a run or a model already is refused otherwise, and so is one that another process
        is writing to.
        What another method with the same cache has made in the same way is taken from it.

        Args:
            episodes: The logged episodes.
            seed: The same seed gives the same numbers.
            directory: Where checkpoints are kept; by default nowhere.
            resume: Whether to continue the interrupted fit in the directory.
            progress: Who reports progress.
            cache: What fits to the same data have in common.
        """
        enable_compilation_cache()
        began = time.monotonic()
        place = None if directory is None else Path(directory)
        with nullcontext() if place is None else claim_directory(place, resume=resume):
            learnt = self.learn(
                episodes,
                seed=seed,
                directory=place,
                resume=resume,
                progress=as_progress(progress),
                cache=cache,
            )
        return replace(
            learnt,
            data={"path": None, "episodes": episodes.count, "steps": episodes.steps},
            notes=(*episodes.notes, *learnt.notes),
            seconds=time.monotonic() - began,
            log=episodes,
            cache=cache,
        )

    @abstractmethod
    def learn(
        self,
        episodes: Episodes,
        *,
        seed: int,
        directory: Path | None,
        resume: bool,
        progress: Progress,
        cache: SharedCache,
    ) -> Fitted:
        """What `fit` returns, when it has said which data these were.

        A method names what it needs, and takes the rest as `_`.
        """


def describe_excluded(excluded: Mapping[str, str]) -> list[str]:
    """Which policies are left out, one sentence for every reason."""
    reasons: dict[str, list[str]] = {}
    for name, reason in excluded.items():
        reasons.setdefault(reason, []).append(name)
    return [f"left out: {', '.join(names)} ({reason})" for reason, names in reasons.items()]


def check_request(
    *, discount: float, horizon: Horizon, episodes: int, confidence: float = CONFIDENCE
) -> None:
    """Refuse what cannot be evaluated, before anything is read or trained."""
    Estimand.from_request(discount=discount, horizon=horizon, actions="mean", longest=1)
    if episodes < 1:
        raise InputError(f"episodes {episodes}: must be at least 1")
    if not 0 < confidence < 1:
        raise InputError(f"confidence {confidence}: must be above 0 and below 1, such as {CONFIDENCE}")


def flatten_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as JSON keeps them, so that a saved and a fresh copy compare equal; nested ones get a dot."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}.{inner}": content for inner, content in flatten_settings(value).items()}
        else:
            flat[name] = list(value) if isinstance(value, tuple) else value
    return flat
