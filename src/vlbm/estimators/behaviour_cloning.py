"""Cloning the behaviour policy by maximum likelihood, for logs that hold no log-probabilities."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from vlbm.data.episodes import Episodes
from vlbm.data.scaler import Scaler
from vlbm.errors import InputError, check_counts
from vlbm.estimators.likelihood import log_probs
from vlbm.estimators.shared_cache import SharedCache
from vlbm.nn.optimiser import Schedule
from vlbm.nn.training import LossOutput, train
from vlbm.policies.mlp import Layer, MLPPolicy
from vlbm.progress import Progress, silent

# Spread in units of the logged actions' own: logs that look deterministic must not have infinite density.
LOG_STD_RANGE = (-5.0, 2.0)
# The usual box of squashed actions; where actions leave it, their own range and a margin take its place.
UNIT_BOX = 1.0
MARGIN = 0.01
VALIDATION_STEPS = 20_000


class Network(eqx.Module):
    """What is trained of a policy."""

    hidden: tuple[Layer, ...]
    head: Layer
    log_std_head: Layer | None


class Unit(NamedTuple):
    """What action vectors are measured in."""

    offset: Float[np.ndarray, " act"]
    scale: Float[np.ndarray, " act"]


@dataclass(frozen=True, eq=False)
class Behaviour:
    """A cloned behaviour policy, and how well it foretells actions that it was not trained on."""

    policy: MLPPolicy
    log_prob: Float[np.ndarray, " steps"]  # of every logged action
    scores: dict[str, float]  # held-out log-likelihood per step of every distribution that was tried

    @property
    def distribution(self) -> str:
        return self.policy.distribution

    @property
    def held_out(self) -> float:
        return self.scores[self.distribution]

    @property
    def note(self) -> str:
        others = [f"{name} {score:.3f}" for name, score in self.scores.items() if name != self.distribution]
        compared = f" ({', '.join(others)})" if others else ""
        return (
            "no log-probabilities were logged: the behaviour policy was cloned by a "
            f"{self.distribution.replace('_', '-')} network, held-out log-likelihood {self.held_out:.3f} per "
            f"step{compared}; weights are only as good as the clone"
        )


@dataclass(frozen=True)
class BehaviourCloning:
    """A small network for every distribution that fits the actions; the best on held-out episodes wins.

    Args:
        units: Hidden layers.
        steps: Of training.
        batch: Logged steps in a batch.
        learning_rate: Of Adam.
        held_out: Share of episodes that distributions are compared on.
    """

    units: tuple[int, ...] = (64, 64)
    steps: int = 2000
    batch: int = 256
    learning_rate: float = 3e-3
    held_out: float = 0.1

    def __post_init__(self) -> None:
        check_counts(self, "steps", "batch")
        if not self.units:
            raise InputError("setting units: at least one hidden layer is needed")

    def fit(self, episodes: Episodes, *, seed: int = 0, progress: Progress = silent) -> Behaviour:
        """The cloned policy, with the log-probability of every logged action.

        Args:
            episodes: The logged episodes.
            seed: The same seed gives the same numbers.
            progress: Who reports progress.
        """
        training, held_out = episodes.split(self.held_out, seed=seed)
        policies: dict[str, MLPPolicy] = {}
        scores: dict[str, float] = {}
        for distribution in ("categorical",) if episodes.discrete else ("gaussian", "tanh_gaussian"):
            policies[distribution], scores[distribution] = self._train(
                distribution, training, held_out, seed=seed, progress=progress
            )
        best = max(scores, key=lambda name: scores[name])
        log_prob = log_probs({"the cloned behaviour": policies[best]}, episodes)["the cloned behaviour"]
        return Behaviour(policies[best], log_prob, scores)

    def _train(
        self, distribution: str, training: Episodes, held_out: Episodes, *, seed: int, progress: Progress
    ) -> tuple[MLPPolicy, float]:
        # Everything is standardised beforehand, so that the compiled program does not depend on the data.
        scaler, unit = Scaler.fit(training.observation), _measure_unit(distribution, training)
        validation = _standardise(held_out, scaler, unit, most=VALIDATION_STEPS, seed=seed)
        network, history = train(
            cloning_loss,
            self._make_network(training, random=np.random.default_rng(seed)),
            _standardise(training, scaler, unit),
            constants=(distribution, self.batch),
            schedule=Schedule(
                steps=self.steps,
                learning_rate=self.learning_rate,
                validate_every=max(min(250, self.steps // 4), 1),
            ),
            validate=lambda network: float(_held_out_loss(network, distribution, *validation)),
            key=jax.random.key(seed),
            progress=progress,
        )
        if history.interrupted:  # weights and back-tests by half a clone would mislead
            raise KeyboardInterrupt
        # A density in standardised units is larger by their size than one in units of the log.
        stretch = 0.0 if unit is None else float(np.log(unit.scale).sum())
        score = -float(_held_out_loss(network, distribution, *validation)) - stretch
        return _make_policy(_fold_scaler(network, scaler), distribution, unit), score

    def _make_network(self, episodes: Episodes, *, random: np.random.Generator) -> Network:
        sizes = (episodes.observation_size, *self.units)
        hidden = tuple(_make_layer(*pair, random=random, gain=2**0.5) for pair in itertools.pairwise(sizes))
        # Small heads: before training every action is about as likely as in the whole log.
        heads = [_make_layer(sizes[-1], episodes.action_size, random=random, gain=0.1) for _ in range(2)]
        return Network(hidden, heads[0], None if episodes.discrete else heads[1])


def clone_once(
    cloning: BehaviourCloning, episodes: Episodes, *, seed: int, cache: SharedCache, progress: Progress
) -> Behaviour:
    """The clone that another method with the same cache has trained on the same episodes, or a new one."""
    return cache.recall(
        (cloning, id(episodes), seed), lambda: cloning.fit(episodes, seed=seed, progress=progress)
    )


def _make_policy(network: Network, distribution: str, unit: Unit | None = None) -> MLPPolicy:
    return MLPPolicy(
        network.hidden,
        network.head,
        network.log_std_head,
        nonlinearity="relu",
        distribution=distribution,
        log_std_min=LOG_STD_RANGE[0],
        log_std_max=LOG_STD_RANGE[1],
        **({} if unit is None else {"action_scale": unit.scale, "action_offset": unit.offset}),
    )


def cloning_loss(
    network: Network, data: tuple[Array, Array], key: PRNGKeyArray, distribution: str, batch: int
) -> LossOutput:
    """The negative log-likelihood of logged actions, of a batch of steps."""
    chosen = jax.random.randint(key, (batch,), 0, len(data[1]))
    value = _negative_log_likelihood(network, distribution, *(part[chosen] for part in data))
    return LossOutput(value, {"loss": value}, network)


def _negative_log_likelihood(network: Network, distribution: str, observation: Array, action: Array) -> Array:
    return -_make_policy(network, distribution).log_prob(observation, action).mean()


_held_out_loss = eqx.filter_jit(_negative_log_likelihood)


def _measure_unit(distribution: str, episodes: Episodes) -> Unit | None:
    """For a Gaussian the spread of the logged actions, for a squashed one the box that they lie in."""
    if distribution == "categorical":
        return None
    action = episodes.action.astype(np.float64)
    if distribution == "gaussian":
        deviation = action.std(axis=0)
        # A column that never changes has no unit of its own.
        return Unit(action.mean(axis=0), np.where(deviation > 1e-6, deviation, 1.0))
    low, high = action.min(axis=0), action.max(axis=0)
    if (low >= -UNIT_BOX).all() and (high <= UNIT_BOX).all():
        return Unit(np.zeros_like(low), np.full_like(high, UNIT_BOX))
    margin = MARGIN * np.maximum(high - low, 1e-3)
    return Unit((high + low) / 2, (high - low) / 2 + margin)


def _fold_scaler(network: Network, scaler: Scaler) -> Network:
    """The same function of observations as they are logged: the scaling moves into the first layer."""
    first = network.hidden[0]
    weight = first.weight / scaler.scale
    folded = Layer(weight, first.bias - weight @ scaler.mean)
    return Network((folded, *network.hidden[1:]), network.head, network.log_std_head)


def _standardise(
    episodes: Episodes, scaler: Scaler, unit: Unit | None, *, most: int | None = None, seed: int = 0
) -> tuple[Array, Array]:
    """Standardised observations and actions of every step, or of `most` steps."""
    step = np.arange(episodes.steps)
    if most is not None and episodes.steps > most:
        step = np.random.default_rng(seed).choice(episodes.steps, most, replace=False)
    observation, action = episodes.observation[episodes.observation_before[step]], episodes.action[step]
    standardised = (observation - np.asarray(scaler.mean)) / np.asarray(scaler.scale)
    if unit is not None:
        action = ((action - unit.offset) / unit.scale).astype(np.float32)
    return jnp.asarray(standardised), jnp.asarray(action)


def _make_layer(inputs: int, outputs: int, *, random: np.random.Generator, gain: float) -> Layer:
    bound = gain * (3.0 / inputs) ** 0.5
    weight = random.uniform(-bound, bound, (outputs, inputs))
    return Layer(jnp.asarray(weight, jnp.float32), jnp.zeros(outputs))
