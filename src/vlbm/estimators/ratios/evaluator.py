"""Evaluators by ratios: what DICE and VPM have in common."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from vlbm.data.episodes import Episodes
from vlbm.data.scaler import Scaler
from vlbm.errors import InputError
from vlbm.estimators.base import Answer, Estimator, Evaluator, Request, Run, described
from vlbm.estimators.critics.bellman import Logged, Problem
from vlbm.estimators.critics.choices import Choices
from vlbm.estimators.critics.networks import Critics
from vlbm.estimators.ratios.balance import Balance
from vlbm.estimators.ratios.batches import Answers
from vlbm.estimators.ratios.correction import Corrected
from vlbm.estimators.ratios.descent import Method, train
from vlbm.estimators.ratios.functions import Reading
from vlbm.nn.optimiser import Schedule


@dataclass(frozen=True)
class Ratios(Estimator["RatioEvaluator"]):
    """Settings that all estimators by ratios share."""

    # The networks
    units: tuple[int, ...] = (64, 64)
    layer_norm: bool = True
    # The training
    steps: int = 2000
    batch: int = 256
    learning_rate: float = 1e-4
    warm_up: int = 100
    decay_rate: float = 0.02  # what remains of the learning rate at the end
    clip: float | None = 10.0  # of every network's gradient norm
    averaging: float = 0.002  # how fast the average that is evaluated follows
    draws: int = 4  # actions drawn at every logged observation, where policies act at random
    # The value and its interval
    self_normalised: bool = True  # divide by how much ends by the ratios, not by how much must
    interval: Literal["bootstrap", "asymptotic"] = "bootstrap"
    resamples: int = 1000

    def __post_init__(self) -> None:
        _check_settings(self)

    @property
    def schedule(self) -> Schedule:
        return Schedule(
            steps=self.steps,
            learning_rate=self.learning_rate,
            warm_up=min(self.warm_up, self.steps // 10),
            decay_rate=self.decay_rate,
            clip=self.clip,
        )

    @abstractmethod
    def method_for(self, logged: Logged, balance: Balance, networks: list[Critics], policies: int) -> Method:
        """How two stacks of fresh networks are trained."""

    @property
    @abstractmethod
    def stationary(self) -> bool:
        """Whether sound ratios average 1 by themselves; otherwise they do when weighted by what ends."""

    def learn(self, episodes: Episodes, run: Run) -> RatioEvaluator:
        """Keep the data and their scaling; ratios belong to policies and are trained with them."""
        if not np.isfinite(episodes.reward).all():
            raise InputError("reward: some are not finite; mend the log first")
        return RatioEvaluator(
            settings=self,
            episodes=episodes,
            scaler=Scaler.fit(episodes.observation),
            action_scaler=None if episodes.discrete else Scaler.fit(episodes.action),
            seed=run.seed,
            data=described(episodes),
            notes=tuple(episodes.notes),
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class RatioEvaluator(Evaluator):
    """Logged episodes, ready for ratios to be trained on."""

    settings: Ratios
    episodes: Episodes
    scaler: Scaler
    action_scaler: Scaler | None

    @property
    def space(self) -> Episodes:
        return self.episodes

    def answer(self, request: Request) -> Answer:
        """The value of every policy, endless without a `horizon`."""
        settings, corrected = self.settings, self.train(request)
        rows = tuple(
            corrected.estimate(
                name,
                interval=settings.interval,
                resamples=settings.resamples,
                confidence=request.confidence,
                seed=request.seed,
            )
            for name in request.policies
        )
        done = corrected.trained.steps
        stopped = (
            [] if done == settings.steps else [f"training was interrupted at step {done} of {settings.steps}"]
        )
        return Answer(
            rows,
            {"horizon": request.horizon, "actions": request.actions},
            (*self._request_warnings(request.horizon), *stopped),
            interrupted=bool(stopped),
        )

    def train(self, request: Request) -> Corrected:
        """The ratios of every policy."""
        if request.horizon is None and request.discount == 1:
            raise InputError(
                "discount 1: without a horizon values need not be finite; give a horizon, or a discount "
                "below 1"
            )
        settings, logs = self.settings, self.episodes
        problem = Problem(logs, request.discount, request.horizon, self.scaler, self.action_scaler)
        logged = problem.logged(np.ones((logs.count, 1)))
        balance = Balance(
            problem,
            goes_on=np.asarray(logged.goes_on, np.float64),
            self_normalised=settings.self_normalised,
            stationary=settings.stationary,
        )
        random = np.random.default_rng([request.seed, 1])
        networks = [
            Critics(
                copies=1,
                policies=len(request.policies),
                observations=logged.observation.shape[1],
                features=0,
                actions=logs.action_size,
                discrete=logs.discrete,
                units=settings.units,
                layer_norm=settings.layer_norm,
                quadratic=False,
                random=random,
            )
            for _ in range(2)
        ]
        choices = Choices(
            request.policies,
            logs.observation,
            action_size=logs.action_size,
            discrete=logs.discrete,
            actions=request.actions,
            draws=settings.draws,
            key=jax.random.fold_in(jax.random.key(request.seed), 1),
            scaler=self.action_scaler,
        )
        trained = train(
            settings.method_for(logged, balance, networks, len(request.policies)),
            logged,
            Answers.of(choices),
            steps=settings.steps,
            batch=settings.batch,
            pool=problem.usable,
            initial=logs.first_observation,
            value=balance.values,
            seed=request.seed,
            progress=request.progress.with_title("training ratios"),
        )
        return Corrected(balance, trained)

    def _request_warnings(self, horizon: int | None) -> list[str]:
        longest = int(self.episodes.length.max())
        if horizon is None or horizon <= longest or self.episodes.terminated.all():
            return []
        return [
            f"no logged episode is as long as the horizon of {horizon}: steps after {longest} can have no "
            "weight, and what is earned there is left out"
        ]


def reading(
    *, positive: bool, policies: int, discrete: bool, offset: float = 1.0, unit: float = 1.0
) -> Reading:
    return Reading(
        offset=jnp.asarray(offset, jnp.float32),
        unit=jnp.asarray(unit, jnp.float32),
        positive=positive,
        policies=policies,
        discrete=discrete,
    )


def _check_settings(settings: Any) -> None:
    for name in ("steps", "batch", "draws", "resamples"):
        if getattr(settings, name) < 1:
            raise InputError(f"setting {name}={getattr(settings, name)}: must be at least 1")
    if not settings.units or min(settings.units) < 1:
        raise InputError(f"setting units={settings.units}: at least one hidden layer of one unit is needed")
    if not 0 < settings.averaging <= 1:
        raise InputError(f"setting averaging={settings.averaging}: must be above 0 and at most 1")
    if settings.learning_rate <= 0:
        raise InputError(f"setting learning_rate={settings.learning_rate}: must be positive")
    if settings.interval not in ("bootstrap", "asymptotic"):
        raise InputError(f"setting interval={settings.interval}: must be one of bootstrap, asymptotic")
