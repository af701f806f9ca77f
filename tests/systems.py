"""Small logs and models that tests share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from vlbm.data.episodes import Episodes
from vlbm.estimators.world_models.vlbm import VLBM
from vlbm.policies import HostPolicy, Layer, MLPPolicy
from vlbm.progress import Progress, Report
from vlbm.worlds.vlbm import BranchingModel


class Interrupting(Progress):
    """Presses Ctrl-C when a step is reached."""

    def __init__(self, step: int):
        self.step = step

    @contextmanager
    def task(self, *, total: int, done: int = 0, title: str = "") -> Iterator[Report]:
        def report(done: int, terms: dict[str, float] | None) -> None:
            if done >= self.step:
                raise KeyboardInterrupt

        yield report


class Table(HostPolicy):
    """Probabilities of actions, whatever is observed, in double precision."""

    discrete = True

    def __init__(self, *probability: float):
        self.probability = np.array(probability)
        self.action_size = len(probability)

    def mean(self, observation):
        return np.full(len(observation), self.probability.argmax())

    def log_prob(self, observation, action):
        with np.errstate(divide="ignore"):
            return np.log(self.probability)[action]


def noise_logs(
    lengths: Sequence[int],
    *,
    terminated: Sequence[bool] | None = None,
    observations: int = 2,
    actions: int = 1,
    n_actions: int | None = None,
    seed: int = 0,
) -> Episodes:
    """Episodes of pure noise, no two numbers alike; columns differ in mean and scale."""
    generator = np.random.default_rng(seed)
    steps = sum(lengths)
    columns = np.arange(observations)
    action = (
        generator.integers(n_actions, size=steps)
        if n_actions is not None
        else generator.normal(size=(steps, actions)).astype(np.float32)
    )
    observation = generator.normal(size=(steps + len(lengths), observations)) * (columns + 0.5) + columns
    return Episodes(
        observation=observation.astype(np.float32),
        action=action,
        reward=(generator.normal(size=steps) * 3 - 1).astype(np.float32),
        length=np.array(lengths),
        terminated=np.zeros(len(lengths), bool) if terminated is None else np.array(terminated),
        n_actions=n_actions,
    )


def random_world(episodes: Episodes, *, seed: int = 0, **settings: Any) -> BranchingModel:
    """A tiny model scaled to the episodes, with random biases and running averages too."""
    sizes: dict[str, Any] = {"branches": 3, "latents": 3, "units": 5, "head_units": (6, 4), "g_units": (6,)}
    sizes |= {"drive": "encoder", "emission": "state"}
    world = VLBM(**{**sizes, **settings}).make_world(episodes, key=jax.random.key(seed))
    random = np.random.default_rng(seed)

    def shaken(path: tuple[Any, ...], leaf: Any) -> Any:
        if getattr(path[-1], "name", "").startswith("weight"):  # random already
            return leaf
        return leaf + jnp.asarray(random.uniform(0.0, 0.6, leaf.shape), jnp.float32)

    networks = {"encoder": world.encoder, "branches": world.branches, "weight_root": world.weight_root}
    return replace(world, **jax.tree_util.tree_map_with_path(shaken, networks))


def distance(difference: np.ndarray, kind: str) -> float:
    """The alignment by its definition: a double loop over pairs."""
    if kind == "none":
        return 0.0
    if kind == "mse":
        return float(np.mean(difference**2))
    units = len(difference)
    pairs = [(difference[j] - difference[k]) ** 2 for j in range(units) for k in range(j + 1, units)]
    return float(np.mean(pairs))


def bits(tree: Any) -> list[bytes]:
    """What two trees of arrays must share to be the same to the last bit."""
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(eqx.filter(tree, eqx.is_array_like))]


def linear_logs(
    lengths=(12, 9, 15, 7, 11, 12), *, observations=3, actions=2, seed=0, n_actions=None
) -> Episodes:
    """A stable linear system under random actions; every other episode is terminated."""
    random = np.random.default_rng(seed)
    states, taken, rewards = [], [], []
    drive = random.normal(size=(actions, observations)) * 0.5
    for length in lengths:
        state = random.normal(size=observations)
        states.append(state)
        for _ in range(length):
            action = random.uniform(-1, 1, size=actions)
            if n_actions is not None:
                chosen = random.integers(n_actions)
                taken.append(chosen)
                action = np.full(actions, chosen / n_actions)
            else:
                taken.append(action)
            state = 0.9 * state + action @ drive + 0.05 * random.normal(size=observations)
            rewards.append(state[0] + 0.01 * random.normal())
            states.append(state)
    return Episodes(
        observation=np.array(states, np.float32),
        action=np.array(taken, np.int32 if n_actions is not None else np.float32),
        reward=np.array(rewards, np.float32),
        length=np.array(lengths, np.int64),
        terminated=np.arange(len(lengths)) % 2 == 0,
        n_actions=n_actions,
    )


def blind(*probability: float) -> MLPPolicy:
    """Chooses ids with these probabilities, whatever it sees."""
    return MLPPolicy(
        (),
        Layer(np.zeros((len(probability), 1), np.float32), np.log(np.array(probability, np.float32))),
        nonlinearity="relu",
        distribution="categorical",
    )
