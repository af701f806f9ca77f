"""What trained critics say of policies, how sure that is, and what speaks against it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, Shaped
from scipy.stats import norm
from scipy.stats import t as student

from vlbm.estimators.critics.bellman import Problem
from vlbm.estimators.critics.choices import Choices
from vlbm.estimators.critics.influence import influence, values_and_weights
from vlbm.estimators.critics.trained import Trained
from vlbm.estimators.intervals import Interval, Quotients, bootstrap
from vlbm.results.estimate import Estimate

INITIAL_DRAWS = 16  # actions drawn at every initial observation, where policies act at random
LATE = 0.2  # the part of training that must not change the value any more
DRIFT = 0.03  # of the value, or of the spread of values: more than this in that part is no convergence
OUTSIDE = 0.05  # share of values beyond the feasible range that is warned of


class OnLogs(NamedTuple):
    """Q of every logged action and V of every logged observation."""

    q: Float[np.ndarray, "*models policies steps"]
    v: Float[np.ndarray, "*models policies rows"]


@dataclass(frozen=True, eq=False)
class FittedCritics:
    """The critics of several policies, by one or several models."""

    problem: Problem
    choices: Choices
    weight: Float[np.ndarray, "episodes models"]  # how much an episode counted for a model
    trained: Trained
    by_model: OnLogs
    influence: Float[np.ndarray, "models policies usable"]  # of steps within the horizon

    @classmethod
    def of(
        cls,
        problem: Problem,
        weight: Float[np.ndarray, "episodes models"],
        trained: Trained,
    ) -> FittedCritics:
        """Ask all logged steps and observations at once: the table of choices is not needed after that."""
        episodes, count = problem.episodes, len(trained.choices.policies)
        factor = influence(trained, problem.usable, episodes.first_observation)
        action_values, weights = values_and_weights(trained, factor)
        state_values = trained.state_values(np.arange(len(episodes.observation)))
        by_model = OnLogs(action_values[:, :count], state_values[:, :count])
        trained = trained.released()
        weights = weights[:, :count, problem.usable]
        return cls(problem, trained.choices, weight, trained, by_model, weights)

    @property
    def names(self) -> list[str]:
        return list(self.choices.policies)

    def __getitem__(self, name: str) -> FittedCritic:
        return FittedCritic(self, self.names.index(name))

    def on_logs(self, belief: Float[np.ndarray, "episodes models"] | None = None) -> OnLogs:
        """Q and V on the logged episodes; `belief` says which models are believed on which episode."""
        action_values, state_values = self.by_model
        if belief is None:
            return OnLogs(action_values.mean(axis=0), state_values.mean(axis=0))
        share = (belief / belief.sum(axis=1, keepdims=True)).T[:, None]
        length = self.problem.episodes.length
        return OnLogs(
            (np.repeat(share, length, axis=-1) * action_values).sum(axis=0),
            (np.repeat(share, length + 1, axis=-1) * state_values).sum(axis=0),
        )

    def estimate(
        self,
        name: str,
        *,
        interval: Literal["bootstrap", "asymptotic"],
        resamples: int,
        confidence: float,
        seed: int,
    ) -> Estimate:
        """The value of a policy: the mean over logged initial observations."""
        index = self.names.index(name)
        beginnings = self._initial[0][:, index]
        values = beginnings.mean(axis=1)
        value = float(values.mean())
        reach = self._interval(beginnings.mean(axis=0), index, interval, resamples, confidence, seed)
        spread = float(values.std(ddof=1)) if len(values) > 1 else 0.0
        if spread > reach.standard_error:
            half = float(student.ppf((1 + confidence) / 2, len(values) - 1)) * spread
            reach = Interval(spread, value - half, value + half)
        reach = reach.around(value).reaching(self.problem.feasible_change(value, self._remainder(index)))
        return Estimate(
            policy=name,
            value=value,
            standard_error=reach.standard_error,
            lower=reach.lower,
            upper=reach.upper,
            returns=beginnings.mean(axis=0),
            length=float(self._length.mean()),
            warnings=tuple(self.warnings(name)),
            details={**self.details(name), **({"models_spread": spread} if len(values) > 1 else {})},
        )

    def details(self, name: str) -> dict[str, float]:
        """How well the Bellman equation holds on episodes left out, and whether training settled."""
        index = self.names.index(name)
        unseen = self.weight == 0
        # Where nothing was left out, the residual is that of the training itself.
        unseen = unseen if unseen.any() else ~unseen
        error = self._residual[:, index]
        steps = np.repeat(unseen.T, self.problem.episodes.length, axis=1) & self._usable
        left_out = error[steps] if steps.any() else error[:, self._usable].ravel()
        return {
            "bellman_residual": float(np.sqrt((left_out**2).mean())),
            "mean_bellman_residual": float(left_out.mean()),
            "remainder": self._remainder(index),
            "late_change": float(np.ptp(self._late[:, index])),
            "outside_share": float(self._initial[1][:, index].mean()),
        }

    def warnings(self, name: str) -> list[str]:
        index, details = self.names.index(name), self.details(name)
        found = []
        if index in self.trained.diverged:
            found.append(
                "the critic diverged: its networks left the numbers after step "
                f"{self.trained.diverged[index]}, and the value is the last sound one; lower learning_rate "
                "or clip"
            )
        value = float(self._initial[0][:, index].mean())
        scale = max(abs(value), float(self.trained.logged.unit))
        if details["late_change"] > DRIFT * scale:
            found.append(
                f"the critic did not converge: over the last {LATE:.0%} of training the value moved by "
                f"{details['late_change']:.3g}; give it more steps, or do not trust it"
            )
        if details["outside_share"] > OUTSIDE:
            found.append(
                f"the critic put {details['outside_share']:.0%} of the initial values beyond what rewards "
                "like the logged ones can add up to; they were clipped, and it may have diverged"
            )
        return found

    def _interval(
        self,
        beginnings: Float[np.ndarray, " episodes"],
        index: int,
        kind: Literal["bootstrap", "asymptotic"],
        resamples: int,
        confidence: float,
        seed: int,
    ) -> Interval:
        luck = self._luck[index]
        terms = beginnings + luck - luck.mean()
        if kind == "asymptotic" or len(terms) == 1:
            error = float(terms.std(ddof=1) / np.sqrt(len(terms))) if len(terms) > 1 else 0.0
            half = float(norm.ppf((1 + confidence) / 2)) * error
            return Interval(error, float(terms.mean()) - half, float(terms.mean()) + half)
        statistic = Quotients(terms[:, None], np.ones((len(terms), 1)), np.zeros(1))
        return bootstrap(statistic, resamples=resamples, confidence=confidence, seed=seed)

    def _remainder(self, index: int) -> float:
        """What the value would move by if the equations for last layers were solved."""
        return float(self._luck[index].mean())

    @cached_property
    def _luck(self) -> list[Float[np.ndarray, " episodes"]]:
        """What the residuals of every episode add to the value, for every policy."""
        episodes, usable = self.problem.episodes, self.problem.usable
        episode, share = episodes.episode_of_step[usable], episodes.count / len(usable)
        return [
            share
            * np.bincount(
                episode,
                weights=(self.influence[:, index] * self._residual[:, index][:, usable]).mean(axis=0),
                minlength=episodes.count,
            )
            for index in range(len(self.names))
        ]

    @property
    def _length(self) -> Int[np.ndarray, " episodes"]:
        length, horizon = self.problem.episodes.length, self.problem.horizon
        return length if horizon is None else np.minimum(length, horizon)

    @cached_property
    def _usable(self) -> Shaped[np.ndarray, " steps"]:
        usable = np.zeros(self.problem.episodes.steps, bool)
        usable[self.problem.usable] = True
        return usable

    @cached_property
    def _initial(self) -> tuple[Float[np.ndarray, "models policies episodes"], np.ndarray]:
        return self.trained.initial_values(self.problem.episodes.first_observation, draws=INITIAL_DRAWS)

    @property
    def _late(self) -> Float[np.ndarray, "looks policies"]:
        course = self.trained.course.mean(axis=1)
        return course[-(int(LATE * len(course)) + 1) :]

    @cached_property
    def _residual(self) -> Float[np.ndarray, "models policies steps"]:
        action_values, state_values = self.by_model
        after = self.problem.episodes.observation_before + 1
        future = np.asarray(self.trained.logged.goes_on) * state_values[..., after]
        return self.problem.episodes.reward + self.problem.discount * future - action_values


@dataclass(frozen=True, eq=False)
class FittedCritic:
    """The critic of one policy, for any observations."""

    critics: FittedCritics
    index: int

    def q(
        self,
        observation: Float[np.ndarray, "batch obs"],
        action: Shaped[np.ndarray, " batch *act"],
        time: Int[np.ndarray, " batch"],
    ) -> Float[np.ndarray, " batch"]:
        return self._asked(observation, time, action=action).action_values(np.arange(len(time))).mean(0)[0]

    def v(
        self, observation: Float[np.ndarray, "batch obs"], time: Int[np.ndarray, " batch"]
    ) -> Float[np.ndarray, " batch"]:
        asked = self._asked(observation, time)
        return asked.initial_values(np.arange(len(time)), draws=INITIAL_DRAWS)[0].mean(0)[0]

    def _asked(
        self, observation: np.ndarray, time: Int[np.ndarray, " batch"], action: np.ndarray | None = None
    ) -> Trained:
        """The same networks, of this policy alone, over other observations."""
        trained, problem = self.critics.trained, self.critics.problem
        name = self.critics.names[self.index]
        logged, (low, high) = trained.logged, problem.range(time)
        offset, unit = float(logged.offset), float(logged.unit)
        return replace(
            trained,
            critics=jax.tree.map(lambda leaf: leaf[:, self.index : self.index + 1], trained.critics),
            shape=replace(trained.shape, policies=1),
            logged=replace(
                logged,
                observation=jnp.asarray(problem.inputs(np.asarray(observation), time)),
                action=logged.action if action is None else jnp.asarray(problem.actions(action)),
                before=jnp.arange(len(time), dtype=jnp.int32),
                low=jnp.asarray((low - offset) / unit, jnp.float32),
                high=jnp.asarray((high - offset) / unit, jnp.float32),
            ),
            choices=replace(
                self.critics.choices,
                policies={name: self.critics.choices.policies[name]},
                observation=np.asarray(observation),
            ),
        )
