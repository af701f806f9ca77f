"""Fitted Q evaluation: what a policy earns, by regression on rewards and the regression's own predictions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from vlbm.data.episodes import Episodes
from vlbm.data.scaler import Scaler
from vlbm.errors import InputError
from vlbm.estimators.base import Answer, Estimator, Evaluator, Request, Run, described
from vlbm.estimators.cache import Memory
from vlbm.estimators.critics.bellman import Logged, Problem, Shape
from vlbm.estimators.critics.choices import Choices
from vlbm.estimators.critics.fitted import FittedCritics
from vlbm.estimators.critics.lots import lots_for
from vlbm.estimators.critics.networks import Critics
from vlbm.estimators.critics.representation import Book, Lessons, Trunk, learn_trunk, what_came_after
from vlbm.estimators.critics.temporal_difference import Descent, train
from vlbm.nn.optimiser import Schedule
from vlbm.policies.base import Policy
from vlbm.policies.stacked import Actions
from vlbm.progress import Progress, silent


@dataclass(frozen=True)
class FQE(Estimator["FQEEvaluator"]):
    """Fitted Q evaluation, with all policies trained at once when they are evaluated.

    A policy is worth the mean, over logged initial observations, of Q at the action it takes there.
    With `horizon=math.inf` the task is endless, and the discount must be below 1: an episode that was cut
    off goes on in value, one that ended earns nothing more. With a horizon, time is one more
    observation and nothing is earned after it; any discount will do.

    Observations are looked at once for all policies: a trunk learns to forecast what was logged after
    them, and every policy has a small network of its own on top. The trunk knows no policy, so that
    a policy's company changes its value by rounding at most.

    The interval resamples episodes, each with the value of its beginning and its Bellman residuals, weighted
    by how much logged steps count for the policy (`influence`): where few of them decide, it is wide.
    It also holds what the value would be if the equations for last layers were solved (`remainder`).
    It knows neither what features cannot express nor what a policy does where nothing was logged. With
    several `models`, each trained on its own random weights of the episodes, their spread is taken where
    it is larger. Quantiles are those of the values of initial observations, for returns are never seen.
    """

    # What all policies share
    shared: bool = True  # features of observations, learnt once; without them every policy learns alone
    trunk_units: tuple[int, ...] = (128, 128)
    trunk_steps: int = 8000
    # The networks of every policy
    units: tuple[int, ...] = (64,)
    layer_norm: bool = True  # steadies training, and flattens values far from where most are seen
    quadratic: bool = True  # a part beside the network that does not, where actions are vectors
    twin: bool = False  # the smaller of two networks is believed
    models: int = 1
    # The training
    steps: int = 5000
    batch: int = 256
    learning_rate: float = 1e-3
    warm_up: int = 100
    decay_rate: float = 0.02  # what remains of the learning rate at the end
    clip: float | None = 10.0  # of every network's gradient norm
    target_rate: float = 0.02  # how fast target networks follow, per step
    averaging: float = 0.002  # how fast the average that is evaluated follows
    draws: int = 4  # actions drawn at every logged observation, where policies act at random
    held_out: float = 0.1  # share of episodes that only measure the Bellman residual
    # The interval
    interval: Literal["bootstrap", "asymptotic"] = "bootstrap"
    resamples: int = 1000

    def __post_init__(self) -> None:
        _check_settings(self)

    @property
    def method(self) -> str:
        return "fqe"

    @property
    def descent(self) -> Descent:
        return Descent(self._schedule(self.steps), self.batch, self.target_rate, self.averaging)

    @property
    def lessons(self) -> Lessons:
        return Lessons(self.trunk_units, self._schedule(self.trunk_steps), self.batch)

    def _schedule(self, steps: int) -> Schedule:
        return Schedule(
            steps=steps,
            learning_rate=self.learning_rate,
            warm_up=min(self.warm_up, steps // 10),
            decay_rate=self.decay_rate,
            clip=self.clip,
        )

    def learn(self, episodes: Episodes, run: Run) -> FQEEvaluator:
        """Keep the data and their scaling; critics belong to policies and are trained with them."""
        if not np.isfinite(episodes.reward).all():
            raise InputError("reward: some are not finite; mend the log first")
        return FQEEvaluator(
            settings=self,
            episodes=episodes,
            scaler=Scaler.fit(episodes.observation),
            action_scaler=None if episodes.discrete else Scaler.fit(episodes.action),
            seed=run.seed,
            data=described(episodes),
            memory=run.memory,
            notes=tuple(episodes.notes),
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class FQEEvaluator(Evaluator):
    """Logged episodes, ready for critics to be trained on."""

    settings: FQE
    episodes: Episodes
    scaler: Scaler
    action_scaler: Scaler | None
    memory: Memory  # critics in it may have been trained for another method

    @property
    def space(self) -> Episodes:
        return self.episodes

    def answer(self, request: Request) -> Answer:
        """The value of every policy, endless without a `horizon`."""
        fitted = self.train(
            request.policies,
            discount=request.discount,
            horizon=request.horizon,
            actions=request.actions,
            seed=request.seed,
            progress=request.progress,
        )
        settings = self.settings
        return Answer(
            tuple(
                fitted.estimate(
                    name,
                    interval=settings.interval,
                    resamples=settings.resamples,
                    confidence=request.confidence,
                    seed=request.seed,
                )
                for name in request.policies
            ),
            {"horizon": request.horizon, "actions": request.actions},
            (*self._request_warnings(request.horizon), *self.interruption(fitted)),
            interrupted=bool(self.interruption(fitted)),
        )

    def train(
        self,
        policies: Mapping[str, Policy],
        *,
        discount: float,
        horizon: int | None = None,
        actions: Actions = "mean",
        weight: Float[np.ndarray, "episodes models"] | None = None,
        seed: int | None = None,
        progress: Progress = silent,
    ) -> FittedCritics:
        """Critics of every policy.

        `weight` says how much every episode counts for every model; by default each model leaves a
        share of the episodes out, and several models weigh the others at random.
        """
        if horizon is None and discount == 1:
            raise InputError(
                "discount 1: without a horizon values need not be finite; give a horizon, or a discount "
                "below 1"
            )
        seed = self.seed if seed is None else seed
        weight = self._weights(seed) if weight is None else weight
        who = tuple((name, id(policy)) for name, policy in policies.items())
        return self.memory.recall(
            (self.settings, who, actions, id(self.episodes), discount, horizon, weight.tobytes(), seed),
            lambda: self._train(policies, discount, horizon, actions, weight, seed, progress),
        )

    def _train(
        self,
        policies: Mapping[str, Policy],
        discount: float,
        horizon: int | None,
        actions: Actions,
        weight: Float[np.ndarray, "episodes models"],
        seed: int,
        progress: Progress,
    ) -> FittedCritics:
        settings, logs = self.settings, self.episodes
        problem = Problem(logs, discount, horizon, self.scaler, self.action_scaler)
        counted = np.any(weight > 0, axis=1)[logs.episode_of_step]
        logged = problem.logged(weight)
        lots, empty = lots_for(len(policies), logged)
        shape = Shape(len(policies) + empty, weight.shape[1], settings.twin, logs.discrete, lots, empty)
        choices = Choices(
            policies,
            logs.observation,
            action_size=logs.action_size,
            discrete=logs.discrete,
            actions=actions,
            draws=settings.draws,
            key=jax.random.fold_in(jax.random.key(seed), 1),
            scaler=self.action_scaler,
            empty=empty,
        )
        if settings.shared:
            # Every policy's critic stands on the same features, whatever the policies and their actions.
            trunk = self.memory.recall(
                (settings.lessons, id(logs), discount, horizon, weight.tobytes(), seed),
                lambda: self._trunk(logged, problem, seed, progress.titled("learning features")),
            )
            logged = replace(logged, trunk=trunk)
        trained = train(
            Critics(
                copies=shape.copies,
                policies=shape.policies,
                observations=logged.observation.shape[1],
                features=settings.trunk_units[-1] if settings.shared else 0,
                actions=logs.action_size,
                discrete=logs.discrete,
                units=settings.units,
                layer_norm=settings.layer_norm,
                quadratic=settings.quadratic,
                random=np.random.default_rng([seed, 1]),
            ),
            logged,
            choices,
            shape=shape,
            descent=settings.descent,
            pool=problem.usable[counted[problem.usable]],
            initial=logs.first_observation,
            seed=seed,
            progress=progress.titled("training critics"),
        )
        return FittedCritics.of(problem, weight, trained)

    def _trunk(self, logged: Logged, problem: Problem, seed: int, progress: Progress) -> Trunk:
        logs = self.episodes
        action = np.eye(logs.action_size, dtype=np.float32)[logs.action] if logs.discrete else logged.action
        after = what_came_after(
            logs,
            np.asarray(logged.observation),
            np.asarray(logged.goes_on),
            discount=problem.discount,
            seed=seed,
        )
        book = Book(
            observation=logged.observation,
            action=jnp.asarray(action),
            before=logged.before,
            after=jnp.asarray(after),
            weight=logged.weight[logged.episode],
            pool=jnp.asarray(problem.usable),
        )
        return learn_trunk(book, self.settings.lessons, seed=seed, progress=progress)

    def _weights(self, seed: int) -> Float[np.ndarray, "episodes models"]:
        count, models = self.episodes.count, self.settings.models
        random = np.random.default_rng([seed, 2])
        # Weights drawn like these are a smooth bootstrap: no episode is ever quite absent from it.
        weight = random.exponential(size=(count, models)) if models > 1 else np.ones((count, models))
        left_out = min(round(self.settings.held_out * count), count - 1)
        for model in range(models):
            weight[random.permutation(count)[:left_out], model] = 0.0
        return weight

    def interruption(self, fitted: FittedCritics) -> list[str]:
        """What to say where Ctrl-C cut the training short; nothing where it did not."""
        done, wanted = fitted.trained.steps, self.settings.steps
        return [] if done == wanted else [f"training was interrupted at step {done} of {wanted}"]

    def _request_warnings(self, horizon: int | None) -> list[str]:
        longest = int(self.episodes.length.max())
        if horizon is None or horizon <= longest or self.episodes.terminated.all():
            return []
        return [
            f"no logged episode is as long as the horizon of {horizon}: from step {longest} on values are "
            "guessed"
        ]


def _check_settings(settings: FQE) -> None:
    for name in ("models", "steps", "trunk_steps", "batch", "draws", "resamples"):
        if getattr(settings, name) < 1:
            raise InputError(f"setting {name}={getattr(settings, name)}: must be at least 1")
    for name in ("units", "trunk_units"):
        if not getattr(settings, name) or min(getattr(settings, name)) < 1:
            raise InputError(
                f"setting {name}={getattr(settings, name)}: at least one hidden layer of one unit is needed"
            )
    for name in ("target_rate", "averaging"):
        if not 0 < getattr(settings, name) <= 1:
            raise InputError(f"setting {name}={getattr(settings, name)}: must be above 0 and at most 1")
    if not 0 <= settings.held_out < 1:
        raise InputError(f"setting held_out={settings.held_out}: must be at least 0 and below 1")
    if settings.learning_rate <= 0:
        raise InputError(f"setting learning_rate={settings.learning_rate}: must be positive")
    if settings.interval not in ("bootstrap", "asymptotic"):
        raise InputError(f"setting interval={settings.interval}: must be one of bootstrap, asymptotic")
