"""Fitted Q evaluation: what a policy earns, by regression on rewards and the regression's own predictions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from vlbm.data.episodes import Episodes
from vlbm.estimators.base import Estimator, Evaluator, Request, describe_data
from vlbm.estimators.fitted_q import FittedQ
from vlbm.estimators.least_squares import influence_weights
from vlbm.estimators.shared_cache import SharedCache
from vlbm.estimators.transitions import Batch, Draw, Problem, Transitions, check_training, split_rows
from vlbm.nn.layers import MLP, LayerKind
from vlbm.nn.optimiser import Schedule
from vlbm.nn.training import LossOutput, train
from vlbm.parallel import Devices, run_parallel
from vlbm.policies.base import Policy
from vlbm.progress import Progress
from vlbm.results.diagnostics.support import Support
from vlbm.results.estimate import Estimates

SETTLED = 0.03  # of the value, or of the spread of values: a round that moves it by less has changed nothing
LARGEST = 1000  # unknowns of the interval's equations where every discrete action has its own


@dataclass(frozen=True)
class FQE(Estimator["FQEEvaluator"]):
    """Fitted Q evaluation (Le et al., 2019): one network for every policy, trained when it is evaluated.

    A policy is worth the mean, over logged initial observations, of Q at what it does there. Q is fitted to
    r + discount * Q'(s', pi(s')), where Q' follows Q slowly and targets are clipped to what rewards like the
    logged ones can add up to. Training goes in rounds, in each of which the learning rate decays; a policy
    whose value a round no longer moves has settled, and a warning names those that have not.

    With a horizon that matters, time is one more observation. The interval resamples episodes, each with the
    value of its beginning and its Bellman residuals weighted by their influence (LSTD on the last hidden
    layer), and holds what the value would be if these equations were solved (`residual_correction`) and what
    the last round moved it by (`last_change`). It does not know what a policy does where nothing was logged:
    `outside_the_log` is the share of its actions at logged observations that are unlike any logged one.

    Args:
        units: Hidden layers of a network.
        layer_norm: Keeps values of actions far from the log near those of the log.
        twin: Believe the smaller of two networks: without, values far from the log can run away.
        rounds: Of training, at most.
        steps: Of a round.
        batch: Logged steps in a batch.
        learning_rate: At the beginning of the first round; each further round has half of the one before.
        decay_rate: What remains of the learning rate at the end of a round.
        target_rate: How fast target networks follow, per step.
        draws: Actions drawn at every logged observation, where policies act at random.
        resamples: Of the interval.
    """

    units: tuple[int, ...] = (128, 128)
    layer_norm: bool = True
    twin: bool = True
    rounds: int = 3
    steps: int = 10_000
    batch: int = 256
    learning_rate: float = 1e-3
    decay_rate: float = 0.02
    target_rate: float = 0.01
    draws: int = 4
    resamples: int = 1000

    def __post_init__(self) -> None:
        check_training(self, "target_rate")

    @property
    def method(self) -> str:
        return "fqe"

    def schedule(self, number: int) -> Schedule:
        """Of one round; each begins with half the rate of the one before, so that values come to rest."""
        return Schedule(
            steps=self.steps,
            learning_rate=self.learning_rate * 0.5**number,
            warm_up=min(100, self.steps // 10),
            decay_rate=self.decay_rate,
            clip=None,  # of all policies together: they would depend on their company
        )

    def learn(self, episodes: Episodes, *, seed: int, cache: SharedCache, **_: Any) -> FQEEvaluator:
        """Keep the data: networks belong to policies and are trained with them."""
        return FQEEvaluator(
            settings=self,
            episodes=episodes,
            seed=seed,
            data=describe_data(episodes),
            cache=cache,
            notes=tuple(episodes.notes),
        )


class QNetwork(eqx.Module):
    """Q(s, a) in standard units; of discrete actions every one has an output, weighted by a."""

    mlp: MLP
    discrete: bool = eqx.field(static=True)

    def __init__(self, inputs: int, actions: int, settings: FQE, *, discrete: bool, key: PRNGKeyArray):
        sizes = (inputs, *settings.units, actions) if discrete else (inputs + actions, *settings.units, 1)
        kind = LayerKind("relu", "layer" if settings.layer_norm else "none")
        self.mlp, self.discrete = MLP(sizes, kind, key=key), discrete

    def __call__(self, s: Float[Array, " inputs"], a: Float[Array, " act"]) -> Float[Array, ""]:
        return self.mlp(s)[0] @ a if self.discrete else self.mlp(jnp.concatenate([s, a]))[0][0]

    def features(self, s: Float[Array, " inputs"], a: Float[Array, " act"]) -> Float[Array, " features"]:
        """What Q is linear in: the last hidden layer and a one; each discrete action has its own."""
        return self.mlp.features(s, a, discrete=self.discrete, most=LARGEST)


class Scale(NamedTuple):
    """Q = offset + unit * output: outputs begin at what the log earns and are about as spread as 1.

    Without endings that is (1 - discount) Q in units of rewards; with them, episodes last less than
    1 / (1 - discount) steps, and values also vary by how long.
    """

    offset: Float[Array, ""]
    unit: Float[Array, ""]

    @classmethod
    def of(cls, problem: Problem) -> Scale:
        reward = problem.episodes.reward[problem.step].astype(np.float64)
        spread = np.sqrt((reward**2).mean()) if problem.episodes.terminated.any() else reward.std()
        lasting = 1 / problem.end_rate
        return cls(jnp.float32(reward.mean() * lasting), jnp.float32((spread or 1.0) * lasting))


class Critics(eqx.Module):
    """Stacked networks, policies first and twins second: those that learn, and those that follow slowly."""

    online: QNetwork
    target: QNetwork
    scale: Scale

    def __getitem__(self, policies: Any) -> Critics:
        online, target = jax.tree.map(lambda leaf: leaf[policies], (self.online, self.target))
        return Critics(online, target, self.scale)


def make_critics(
    data: Transitions, settings: FQE, scale: Scale, *, discrete: bool, key: PRNGKeyArray
) -> Critics:
    """Untrained critics. All policies start from the same networks, so that none depends on its company."""
    inputs, actions = data.observation.shape[1], data.action.shape[1]
    keys = jax.random.split(key, 2 if settings.twin else 1)
    twins = eqx.filter_vmap(lambda key: QNetwork(inputs, actions, settings, discrete=discrete, key=key))(keys)
    networks = jax.tree.map(lambda leaf: jnp.repeat(leaf[None], data.policies, axis=0), twins)
    return Critics(networks, networks, scale)


def believe(twins: QNetwork, s: Float[Array, "batch inputs"], a: Float[Array, "batch act"]) -> Array:
    """Q of one policy in standard units; of twins the smaller is believed.

    Of discrete actions for each by itself, so that V is the mean of Q over what the policy does: doubly
    robust estimates rest on that.
    """
    if twins.discrete:
        each = eqx.filter_vmap(lambda network: jax.vmap(lambda s: network.mlp(s)[0])(s))(twins)
        return (each.min(axis=0) * a).sum(axis=-1)
    return eqx.filter_vmap(lambda network: jax.vmap(network)(s, a))(twins).min(axis=0)


@dataclass(frozen=True)
class BellmanLoss:
    """The squared distance of Q(s, a) from r + discount * Q'(s', pi(s'))."""

    target_rate: float

    def __call__(self, critics: Critics, batch: Batch, key: PRNGKeyArray) -> LossOutput:
        offset, unit = jax.lax.stop_gradient(critics.scale)
        target = jax.lax.stop_gradient(critics.target)

        def of_policy(online: QNetwork, target: QNetwork, next_a: Float[Array, "batch act"]) -> Array:
            future = offset + unit * believe(target, batch.next_s, next_a)
            goal = jnp.clip(batch.reward + batch.continuation * future, batch.low, batch.high)
            predicted = eqx.filter_vmap(lambda network: jax.vmap(network)(batch.s, batch.a))(online)
            return jnp.square(predicted - (goal - offset) / unit).mean(axis=-1).sum()

        networks = (eqx.if_array(0), eqx.if_array(0))
        losses = eqx.filter_vmap(of_policy, in_axes=(*networks, 1))(critics.online, target, batch.next_a)
        follow = jax.tree.map(lambda old, new: old + self.target_rate * (new - old), target, critics.online)
        # A sum: every policy has its own gradient, whatever the others do.
        return LossOutput(
            losses.sum(), {"loss": losses.mean()}, Critics(critics.online, follow, critics.scale)
        )


class Trained(NamedTuple):
    """Critics after their last round, and what that round still changed."""

    critics: Critics
    change: Float[np.ndarray, " policies"]
    settled: Bool[np.ndarray, " policies"]
    interrupted: bool


def train_until_settled(
    critics: Critics,
    data: Transitions,
    settings: FQE,
    *,
    key: PRNGKeyArray,
    devices: Devices,
    progress: Progress,
) -> Trained:
    """Rounds of training, each from where the one before ended; a policy that has settled takes no part."""
    settled, change = np.zeros(data.policies, bool), np.full(data.policies, np.inf)
    value, interrupted = evaluate_rows(critics, data, data.initial).mean(axis=1), False
    for number in range(settings.rounds):
        moving = np.flatnonzero(~settled)
        part, history = train(
            BellmanLoss(settings.target_rate),
            critics[moving],
            data.of_policies(moving),
            schedule=settings.schedule(number),
            validate=None,
            key=jax.random.fold_in(key, number),
            draw=Draw(settings.batch),
            devices=devices,
            progress=progress.with_title("fitting Q"),
        )
        critics = put_back(critics, moving, part)
        after = evaluate_rows(critics, data, data.initial).mean(axis=1)
        change, value = np.where(settled, change, np.abs(after - value)), after
        interrupted = history.interrupted
        # What the first round moves is the start, not the fit.
        if number > 0:
            settled |= change < SETTLED * np.maximum(np.abs(value), float(critics.scale.unit))
        if interrupted or settled.all():
            break
    return Trained(critics, change, settled, interrupted)


def put_back(critics: Critics, chosen: np.ndarray, part: Critics) -> Critics:
    """All critics, with those of some policies replaced."""

    def replaced(before: Array, after: Array) -> Array:
        return jnp.asarray(before).at[chosen].set(after)

    online, target = jax.tree.map(replaced, (critics.online, critics.target), (part.online, part.target))
    return Critics(online, target, critics.scale)


def evaluate_rows(critics: Critics, data: Transitions, rows: Any) -> Float[np.ndarray, "policies rows"]:
    """V of every policy at some observations, averaged over its draws."""
    return _collect(_state_values, critics, data, np.asarray(rows))


def evaluate_steps(critics: Critics, data: Transitions) -> Float[np.ndarray, "policies steps"]:
    """Q of every logged action."""
    return _collect(_action_values, critics, data, np.arange(data.steps))


def _collect(function: Any, critics: Critics, data: Transitions, rows: np.ndarray) -> np.ndarray:
    parts = [
        np.asarray(function(critics, data, part), np.float64)[:, :count] for part, count in split_rows(rows)
    ]
    return float(critics.scale.offset) + float(critics.scale.unit) * np.concatenate(parts, axis=1)


@eqx.filter_jit
def _state_values(critics: Critics, data: Transitions, rows: Array) -> Float[Array, "policies rows"]:
    s, drawn = data.observation[rows], data.policy_action[:, rows]

    def of_policy(twins: QNetwork, drawn: Float[Array, "draws rows act"]) -> Array:
        return jax.vmap(lambda a: believe(twins, s, a))(drawn).mean(axis=0)

    return eqx.filter_vmap(of_policy, in_axes=(eqx.if_array(0), 2))(critics.online, drawn)


@eqx.filter_jit
def _action_values(critics: Critics, data: Transitions, steps: Array) -> Float[Array, "policies steps"]:
    s, a = data.observation[data.before[steps]], data.action[steps]
    return eqx.filter_vmap(lambda twins: believe(twins, s, a))(critics.online)


@dataclass(frozen=True, eq=False, kw_only=True)
class FQEEvaluator(Evaluator):
    """Logged episodes, ready for critics to be trained on."""

    settings: FQE
    episodes: Episodes

    @property
    def space(self) -> Episodes:
        return self.episodes

    def estimate(self, request: Request) -> Estimates:
        problem = Problem(self.episodes, request.discount, request.horizon, request.actions)
        fitted = self.train(problem, request.policies, seed=request.seed, progress=request.progress)
        rows = (
            fitted.estimate(
                name, resamples=self.settings.resamples, confidence=request.confidence, seed=request.seed
            )
            for name in request.policies
        )
        stopped = ["training was interrupted: values are of what was fitted so far"] * fitted.interrupted
        warnings = (*problem.warnings(), *stopped)
        return self.tabulate(request, rows, warnings=warnings, interrupted=fitted.interrupted)

    def train(
        self, problem: Problem, policies: Mapping[str, Policy], *, seed: int, progress: Progress
    ) -> FittedQ:
        """The critics of all policies, or those that another method trained for the same question."""
        who = tuple((name, id(policy)) for name, policy in policies.items())
        apart = None if problem.held_out is None else problem.held_out.tobytes()
        asked = (problem.discount, problem.horizon, problem.actions, id(problem.episodes), apart)
        return self.cache.recall(
            (self.settings, who, asked, seed),
            lambda: fit_q(problem, policies, self.settings, seed=seed, progress=progress),
        )


def fit_q(
    problem: Problem, policies: Mapping[str, Policy], settings: FQE, *, seed: int, progress: Progress
) -> FittedQ:
    """Train the critics of all policies, some on every device, and ask them about the whole log."""
    log = problem.episodes
    policy_key, network_key, step_key = jax.random.split(jax.random.key(seed), 3)
    data = problem.transitions(policies, draws=settings.draws, key=policy_key)
    groups = np.array_split(np.arange(len(policies)), min(len(jax.local_devices()), len(policies)))

    def train_group(chosen: np.ndarray, devices: Devices) -> Trained:
        part = data.of_policies(chosen)
        critics = make_critics(part, settings, Scale.of(problem), discrete=log.discrete, key=network_key)
        return train_until_settled(critics, part, settings, key=step_key, devices=devices, progress=together)

    with progress.shared_display(parts=len(groups) * settings.rounds) as together:
        trained = run_parallel([partial(train_group, chosen) for chosen in groups], batch=settings.batch)
    if len(trained) < len(groups):  # Ctrl-C came before all had begun
        raise KeyboardInterrupt
    critics = jax.tree.map(
        lambda *parts: jnp.concatenate(parts) if parts[0].ndim else parts[0],
        *(part.critics for part in trained),
    )
    low, high = problem.value_range(problem.row_time)
    before = log.observation_before[problem.step]
    some = np.random.default_rng(seed).choice(log.observation_before, min(1500, log.steps), replace=False)
    return FittedQ(
        problem=problem,
        names=tuple(policies),
        q=np.clip(evaluate_steps(critics, data), low[before], high[before]),
        v=np.clip(evaluate_rows(critics, data, np.arange(len(log.observation))), low, high),
        weight=influence_weights(
            QNetwork.features, jax.tree.map(lambda leaf: leaf[:, 0], critics.online), data
        ),
        change=np.concatenate([part.change for part in trained]),
        settled=np.concatenate([part.settled for part in trained]),
        unit=float(critics.scale.unit),
        outside=Support.of(log, seed=seed).outside_shares(
            log.observation[some], problem.raw_actions(data, some), discrete=log.discrete
        ),
        interrupted=any(part.interrupted for part in trained),
    )
