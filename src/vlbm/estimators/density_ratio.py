"""What DICE and VPM share: rounds of training, and what density ratios make policies worth."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PRNGKeyArray

from vlbm.data.episodes import Episodes
from vlbm.estimators.base import Estimator, Evaluator, Request, describe_data
from vlbm.estimators.intervals import Quotients, bootstrap
from vlbm.estimators.least_squares import influence_weights
from vlbm.estimators.ratio_networks import Network
from vlbm.estimators.transitions import Draw, Problem, Transitions, check_training
from vlbm.nn.optimiser import Schedule
from vlbm.nn.training import LossOutput, train
from vlbm.parallel import Devices, run_parallel
from vlbm.policies.base import Policy
from vlbm.progress import Progress
from vlbm.results.estimate import Estimate, Estimates

SETTLED = 0.03  # of the value, or of the spread of values: a round that moves it by less has changed nothing
FEW = 0.02  # effective share of the steps that is warned of
SOUND_MEAN = (0.8, 1.25)  # of ratios
FLOW = 0.1  # violation of the flow constraint that is warned of, in deviations of what is observed and done


@dataclass(frozen=True)
class DensityRatio(Estimator["DensityRatioEvaluator"]):
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

    @property
    def schedule(self) -> Schedule:
        """Of one round."""
        return Schedule(
            steps=self.steps,
            learning_rate=self.learning_rate,
            warm_up=min(100, self.steps // 10),
            decay_rate=self.decay_rate,
            clip=None,  # of all policies together: they would depend on their company
        )

    @property
    @abstractmethod
    def loss(self) -> Callable[[Any, Any, PRNGKeyArray], LossOutput]:
        """What a step of training descends."""

    @abstractmethod
    def make_model(self, problem: Problem, data: Transitions, key: PRNGKeyArray) -> Any:
        """Untrained networks of all policies; its attribute `average` has the features of the ratio."""

    @abstractmethod
    def weigh(self, model: Any, data: Transitions, policy: int) -> Float[np.ndarray, " steps"]:
        """The ratios of one policy at logged steps, with last layers where its features would have them."""

    def mean_ratio(self, problem: Problem, ratio: Float[np.ndarray, "policies steps"]) -> np.ndarray:
        """How much ends of what begins; 1 for sound ratios."""
        return (ratio * (1 - problem.continuation)).mean(axis=1) / problem.end_rate

    def learn(self, episodes: Episodes, *, seed: int, **_: Any) -> DensityRatioEvaluator:
        """Keep the data: ratios belong to policies and are trained with them."""
        return DensityRatioEvaluator(
            settings=self,
            episodes=episodes,
            seed=seed,
            data=describe_data(episodes),
            notes=tuple(episodes.notes),
        )


class Trained(NamedTuple):
    """Ratio networks after their last round, and the values that every round gave."""

    networks: Network
    ratio: Float[np.ndarray, "policies steps"]
    values: Float[np.ndarray, "rounds policies"]
    interrupted: bool


def train_rounds(
    problem: Problem,
    data: Transitions,
    settings: DensityRatio,
    *,
    key: PRNGKeyArray,
    devices: Devices,
    progress: Progress,
) -> Trained:
    """Rounds of training, each from where the one before ended."""
    network_key, step_key = jax.random.split(key)
    model, values, interrupted = settings.make_model(problem, data, network_key), [], False
    ratio = np.ones((data.policies, data.steps))
    for number in range(settings.rounds):
        model, history = train(
            settings.loss,
            model,
            data,
            schedule=settings.schedule,
            validate=None,
            key=jax.random.fold_in(step_key, number),
            draw=Draw(settings.batch),
            devices=devices,
            progress=progress.with_title("training density ratios"),
        )
        ratio = np.stack([settings.weigh(model, data, policy) for policy in range(data.policies)])
        interrupted = history.interrupted
        values.append([sum_episodes(problem, settings, one).value for one in ratio])
        if interrupted:
            break
    return Trained(model.average, ratio, np.array(values), interrupted)


def sum_episodes(problem: Problem, settings: DensityRatio, ratio: Float[np.ndarray, " steps"]) -> Quotients:
    """What every episode contributes to the value: what is earned by the ratios, over how much ends."""
    log, step = problem.episodes, problem.step

    def total(weight: np.ndarray) -> np.ndarray:
        return np.bincount(log.episode_of_step[step], weight, minlength=log.count)[:, None]

    ending = 1 - problem.continuation
    ended = ratio * ending if settings.self_normalised else np.full(len(step), problem.end_rate)
    otherwise = log.reward[step].mean(dtype=np.float64) / problem.end_rate
    return Quotients(total(ratio * log.reward[step]), total(ended), np.array([otherwise]))


def violate_flow(
    problem: Problem, data: Transitions, ratio: Float[np.ndarray, "policies steps"]
) -> Float[np.ndarray, " policies"]:
    """How far observations and actions violate the flow constraint, in their deviations; the worst of them.

    It holds for every function of observation and action, but training asked for those of its networks only.
    """
    before, goes_on = np.asarray(data.before), problem.continuation
    seen, done, initial = np.asarray(data.observation), np.asarray(data.action), np.asarray(data.initial)
    taken = np.asarray(data.policy_action[0])
    ended = (ratio * (1 - goes_on)).mean(axis=1, keepdims=True)
    weight = ratio * problem.end_rate / np.maximum(ended, 1e-12) / len(before)
    of_seen = (
        problem.end_rate * seen[initial].mean(axis=0)
        + (weight * goes_on) @ seen[before + 1]
        - weight @ seen[before]
    )
    of_done = (
        problem.end_rate * taken[initial].mean(axis=0)
        + np.einsum("pb,bpa->pa", weight * goes_on, taken[before + 1])
        - weight @ done
    )
    return np.abs(np.concatenate([of_seen, of_done], axis=1)).max(axis=1)


@dataclass(frozen=True, eq=False)
class Weighed:
    """Density ratios of several policies at logged steps within the horizon, and what they are worth."""

    problem: Problem
    settings: DensityRatio
    names: tuple[str, ...]
    ratio: Float[np.ndarray, "policies steps"]
    values: Float[np.ndarray, "rounds policies"]
    lstd: Float[np.ndarray, " policies"]  # the value by linear equations in the ratio networks' features
    mean: Float[np.ndarray, " policies"]
    flow: Float[np.ndarray, " policies"]
    interrupted: bool

    def estimate(self, name: str, *, confidence: float, seed: int) -> Estimate:
        """Logged rewards, weighted by ratios."""
        index, problem, resamples = self.names.index(name), self.problem, self.settings.resamples
        terms = sum_episodes(problem, self.settings, self.ratio[index])
        value, details = terms.value, self.details(index)
        interval = bootstrap(terms, resamples=resamples, confidence=confidence, seed=seed).around(value)
        low, high = problem.value_range(np.zeros(1, int))
        solved = np.clip(value + details["lstd_change"], min(low[0], value), max(high[0], value))
        interval = interval.reaching(float(solved) - value)
        return Estimate(
            policy=name,
            value=value,
            standard_error=interval.standard_error,
            lower=interval.lower,
            upper=interval.upper,
            returns=None,  # steps are weighed, not episodes
            length=None,
            warnings=tuple(self.warnings(value, details)),
            details=details,
        )

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
        }

    def warnings(self, value: float, details: Mapping[str, float]) -> list[str]:
        found = []
        reward = self.problem.episodes.reward[self.problem.step]
        scale = max(abs(value), float(reward.std()) / self.problem.end_rate)
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


@dataclass(frozen=True, eq=False, kw_only=True)
class DensityRatioEvaluator(Evaluator):
    """Logged episodes, ready for ratios to be trained on."""

    settings: DensityRatio
    episodes: Episodes

    @property
    def space(self) -> Episodes:
        return self.episodes

    def estimate(self, request: Request) -> Estimates:
        """The value of every policy, endless without a `horizon`."""
        problem = Problem(self.episodes, request.discount, request.horizon, request.actions)
        weighed = fit_ratios(
            problem, request.policies, self.settings, seed=request.seed, progress=request.progress
        )
        rows = (
            weighed.estimate(name, confidence=request.confidence, seed=request.seed)
            for name in request.policies
        )
        stopped = ["training was interrupted: values are of what was learnt so far"] * weighed.interrupted
        warnings = (*problem.warnings(), *stopped)
        return self.tabulate(request, rows, warnings=warnings, interrupted=weighed.interrupted)


def fit_ratios(
    problem: Problem, policies: Mapping[str, Policy], settings: DensityRatio, *, seed: int, progress: Progress
) -> Weighed:
    """Train the ratios of all policies, some on every device, and weigh the whole log by them."""
    log = problem.episodes
    policy_key, train_key = jax.random.split(jax.random.key(seed))
    data = problem.transitions(policies, draws=settings.draws, key=policy_key)
    groups = np.array_split(np.arange(len(policies)), min(len(jax.local_devices()), len(policies)))

    def train_group(chosen: np.ndarray, devices: Devices) -> Trained:
        part = data.of_policies(chosen)
        return train_rounds(problem, part, settings, key=train_key, devices=devices, progress=together)

    with progress.shared_display(parts=len(groups) * settings.rounds) as together:
        trained = run_parallel([partial(train_group, chosen) for chosen in groups], batch=settings.batch)
    if len(trained) < len(groups):  # Ctrl-C came before all had begun
        raise KeyboardInterrupt
    ratio = np.concatenate([part.ratio for part in trained])
    networks = jax.tree.map(lambda *parts: jnp.concatenate(parts), *(part.networks for part in trained))
    rounds = min(len(part.values) for part in trained)
    return Weighed(
        problem=problem,
        settings=settings,
        names=tuple(policies),
        ratio=ratio,
        values=np.concatenate([part.values[-rounds:] for part in trained], axis=1),
        lstd=(influence_weights(Network.features, networks, data) * log.reward[problem.step]).mean(axis=1),
        mean=settings.mean_ratio(problem, ratio),
        flow=violate_flow(problem, data, ratio),
        interrupted=any(part.interrupted for part in trained),
    )
