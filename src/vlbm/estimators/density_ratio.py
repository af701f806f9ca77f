"""What DICE and VPM share: rounds of training, and what density ratios make policies worth."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PRNGKeyArray

from vlbm.estimators.intervals import Quotients, bootstrap, estimate_from
from vlbm.estimators.least_squares import influence_weights
from vlbm.estimators.networks import Network
from vlbm.estimators.transition_estimator import (
    TransitionEstimator,
    check_training,
    round_schedule,
    train_groups,
)
from vlbm.estimators.transitions import Batch, Problem, Transitions
from vlbm.nn.training import LossOutput, evaluate_loss, train
from vlbm.parallel import Devices
from vlbm.policies.base import Policy
from vlbm.progress import Progress
from vlbm.results.diagnostics.trust import OUTSIDE, action_warnings
from vlbm.results.estimate import Estimate

SETTLED = 0.03  # of the value, or of the spread of values: a round that moves it by less has changed nothing
FEW = 0.02  # effective share of the steps that is warned of
SOUND_MEAN = (0.8, 1.25)  # of ratios
FLOW = 0.1  # violation of the flow constraint that is warned of, in deviations of what is observed and done


@dataclass(frozen=True)
class DensityRatio(TransitionEstimator):
    """Settings that all estimators by density ratios share.

    Args:
        units: Hidden layers of a network.
        layer_norm: Whether layers are normalised.
        rounds: Of training, each followed by solving for the last layers.
        steps: Of a round.
        batch: Logged steps in a batch.
        learning_rate: At the beginning of a round.
        decay_rate: What remains of the learning rate at the end of a round.
        averaging: How fast the running average of the networks follows, per step.
        draws: Actions drawn at every logged observation, where policies act at random.
        self_normalised: Divide by how much ends by the ratios, not by how much must.
        resamples: Of the interval.
    """

    units: tuple[int, ...] = (64, 64)
    layer_norm: bool = True
    rounds: int = 2
    steps: int = 500
    batch: int = 256
    learning_rate: float = 1e-4
    decay_rate: float = 0.02
    averaging: float = 0.005
    draws: int = 4
    self_normalised: bool = True
    resamples: int = 1000

    def __post_init__(self) -> None:
        check_training(self, "averaging")

    @abstractmethod
    def make_model(self, problem: Problem, data: Transitions, key: PRNGKeyArray) -> Any:
        """Untrained networks of all policies; its attribute `average` is the averaged ratio network."""

    @abstractmethod
    def loss(self, model: Any, batch: Batch, key: PRNGKeyArray) -> LossOutput:
        """What a step of training descends."""

    @abstractmethod
    def solve(self, model: Any, data: Transitions, policy: int) -> Float[np.ndarray, " steps"]:
        """The ratios of one policy at logged steps, with last layers solved for."""

    def mean_ratio(self, problem: Problem, ratio: Float[np.ndarray, "policies steps"]) -> np.ndarray:
        """How much ends of what begins; 1 for sound ratios."""
        return (ratio * (1 - problem.continuation)).mean(axis=1) / problem.end_rate

    def train(
        self, problem: Problem, policies: Mapping[str, Policy], *, seed: int, progress: Progress, **_: Any
    ) -> FittedRatios:
        """Train the ratios of all policies, and weigh the whole log by them."""
        policy_key, train_key = jax.random.split(jax.random.key(seed))
        data = problem.transitions(policies, draws=self.draws, key=policy_key)

        def train_group(group: Transitions, devices: Devices, *, progress: Progress) -> tuple:
            return self.train_ratios(problem, group, key=train_key, devices=devices, progress=progress)

        averages, ratios, values, interrupted = zip(
            *train_groups(train_group, data, self, progress), strict=True
        )
        networks: Network = jax.tree.map(lambda *parts: jnp.concatenate(parts), *averages)
        ratio, rounds = np.concatenate(ratios), min(map(len, values))
        return FittedRatios(
            problem=problem,
            settings=self,
            names=tuple(policies),
            ratio=ratio,
            values=np.concatenate([part[-rounds:] for part in values], axis=1),
            lstd=(influence_weights(networks, data) * problem.reward).mean(axis=1),
            mean=self.mean_ratio(problem, ratio),
            flow=violate_flow(problem, data, ratio),
            outside=problem.outside_shares(data, seed=seed),
            interrupted=any(interrupted),
        )

    def train_ratios(
        self, problem: Problem, data: Transitions, *, key: PRNGKeyArray, devices: Devices, progress: Progress
    ) -> tuple[Network, Float[np.ndarray, "policies steps"], Float[np.ndarray, "rounds policies"], bool]:
        """Rounds of training, after each of which last layers are solved for.

        The averaged networks, their ratios, the values that every round gave, and whether Ctrl-C came.
        """
        network_key, step_key = jax.random.split(key)
        model, values, interrupted = self.make_model(problem, data, network_key), [], False
        ratio = np.ones((data.policies, data.steps))
        for number in range(self.rounds):
            model, history = train(
                evaluate_loss,
                model,
                data,
                constants=(self,),
                schedule=round_schedule(self, learning_rate=self.learning_rate),
                validate=None,
                key=jax.random.fold_in(step_key, number),
                batch=self.batch,
                devices=devices,
                progress=progress.with_title("training density ratios"),
            )
            ratio = np.stack([self.solve(model, data, policy) for policy in range(data.policies)])
            interrupted = history.interrupted
            values.append([weigh_rewards(problem, self, one).value for one in ratio])
            if interrupted:
                break
        return model.average, ratio, np.array(values), interrupted


def weigh_rewards(problem: Problem, settings: DensityRatio, ratio: Float[np.ndarray, " steps"]) -> Quotients:
    """What every episode contributes to the value: what is earned by the ratios, over how much ends."""
    ends = ratio * (1 - problem.continuation)
    ended = ends if settings.self_normalised else np.full(len(ratio), problem.end_rate)
    otherwise = problem.reward.mean(dtype=np.float64) / problem.end_rate
    earned, ended = (problem.sum_episodes(part)[:, None] for part in (ratio * problem.reward, ended))
    return Quotients(earned, ended, np.array([otherwise]))


def violate_flow(
    problem: Problem, data: Transitions, ratio: Float[np.ndarray, "policies steps"]
) -> Float[np.ndarray, " policies"]:
    """How far observations and actions violate the flow constraint, in their deviations; the worst of them.

    It holds for every function of observation and action, but training asked for those of its networks only.
    """
    before, continuation, initial = np.asarray(data.before), problem.continuation, np.asarray(data.initial)
    s, a, policy_a = (np.asarray(part) for part in (data.observation, data.action, data.policy_action[0]))
    ended = (ratio * (1 - continuation)).mean(axis=1, keepdims=True)
    weight = ratio * problem.end_rate / np.maximum(ended, 1e-12) / len(before)
    of_s = (
        problem.end_rate * s[initial].mean(axis=0)
        + (weight * continuation) @ s[before + 1]
        - weight @ s[before]
    )
    of_a = (
        problem.end_rate * policy_a[initial].mean(axis=0)
        + np.einsum("pb,bpa->pa", weight * continuation, policy_a[before + 1])
        - weight @ a
    )
    return np.abs(np.concatenate([of_s, of_a], axis=1)).max(axis=1)


@dataclass(frozen=True, eq=False)
class FittedRatios:
    """Density ratios of several policies at logged steps within the horizon, and what they are worth."""

    problem: Problem
    settings: DensityRatio
    names: tuple[str, ...]
    ratio: Float[np.ndarray, "policies steps"]
    values: Float[np.ndarray, "rounds policies"]
    lstd: Float[np.ndarray, " policies"]  # the value by linear equations in the ratio networks' features
    mean: Float[np.ndarray, " policies"]
    flow: Float[np.ndarray, " policies"]
    outside: Float[np.ndarray, " policies"]  # share of a policy's actions that are unlike logged ones
    interrupted: bool

    def estimate(self, name: str, *, resamples: int, confidence: float, seed: int) -> Estimate:
        """Logged rewards, weighted by ratios."""
        index = self.names.index(name)
        terms = weigh_rewards(self.problem, self.settings, self.ratio[index])
        value, details = terms.value, self.details(index)
        interval = bootstrap(terms, resamples=resamples, confidence=confidence, seed=seed).include(value)
        interval = interval.include_shifted(self.problem.clip_shift(value, details["lstd_change"]))
        warnings = self.warnings(value, details)
        return estimate_from(interval, policy=name, value=value, warnings=warnings, details=details)

    def details(self, index: int) -> dict[str, float]:
        """How far the ratios are from what sound ones must be, and whether training settled."""
        ratio, value = self.ratio[index], self.values[-1, index]
        before = self.values[-2, index] if len(self.values) > 1 else value
        square = float((ratio**2).sum())
        return {
            "mean_ratio": float(self.mean[index]),
            "largest_ratio": float(ratio.max()),
            "effective_share": float(ratio.sum() ** 2 / (len(ratio) * square)) if square > 0 else 0.0,
            "flow_violation": float(self.flow[index]),
            "lstd_change": float(self.lstd[index] - value),
            "last_change": float(abs(value - before)),
            OUTSIDE: float(self.outside[index]),
        }

    def warnings(self, value: float, details: Mapping[str, float]) -> list[str]:
        """What speaks against the value of a policy."""
        found = list(action_warnings(details[OUTSIDE]))
        scale = max(abs(value), float(self.problem.reward.std()) / self.problem.end_rate)
        if details["last_change"] > SETTLED * scale and not self.interrupted:
            found.append(
                "the ratios have not settled: the last round of training moved the value by "
                f"{details['last_change']:.3g}; give them more rounds, or do not trust them"
            )
        if details["effective_share"] < FEW:
            found.append(
                f"the ratios are concentrated: they leave {details['effective_share']:.1%} of the logged "
                "steps to carry the value"
            )
        if not SOUND_MEAN[0] <= details["mean_ratio"] <= SOUND_MEAN[1]:
            found.append(
                f"the ratios average {details['mean_ratio']:.2g}, and sound ones average 1: steps like this "
                "policy's are missing, or training has not found them"
            )
        if details["flow_violation"] > FLOW:
            found.append(
                "the ratios violate the flow constraint: what flows into the weighted steps differs by "
                f"{details['flow_violation']:.2g} deviations from what flows out; the policy may do what the "
                "log does not show"
            )
        return found
