"""Train policies for a Gymnasium environment by soft actor-critic, and save snapshots on the way."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import optax
from jaxtyping import Array, Float, PRNGKeyArray, Scalar

from vlbm.policies.mlp import Layer, MLPPolicy
from vlbm.policies.weights import save_policy

ROUND = 50  # environment steps, then as many updates in one compiled scan
BATCH = 128
ACTOR_WIDTH = 64
CRITIC_WIDTH = 128
LEARNING_RATE = 1e-3
TARGET_RATE = 0.005
LOG_STD_RANGE = (-5.0, 1.0)
# Ant's contact forces are left out: 27 numbers, as in D4RL's later users, and a far smaller network.
OPTIONS = {"Ant-v5": {"include_cfrc_ext_in_observation": False}}
OPTIMISER = optax.adam(LEARNING_RATE)


class Training(NamedTuple):
    """What differs between environments.

    Hopper and Walker2d get stuck in one long leap unless the future counts (0.995) and exploration
    never dies (0.05).
    """

    discount: float = 0.99
    lowest_temperature: float = 0.0
    warm_up: int = 1_000  # steps of uniformly random actions before the first update


USUAL = Training()


class Actor(eqx.Module):
    """A tanh-Gaussian policy over actions in [-1, 1], with a log-std for each state."""

    first: eqx.nn.Linear
    second: eqx.nn.Linear
    mean: eqx.nn.Linear
    log_std: eqx.nn.Linear

    def __init__(self, observation_size: int, action_size: int, *, key: PRNGKeyArray):
        first_key, second_key, mean_key, log_std_key = jax.random.split(key, 4)
        self.first = eqx.nn.Linear(observation_size, ACTOR_WIDTH, key=first_key)
        self.second = eqx.nn.Linear(ACTOR_WIDTH, ACTOR_WIDTH, key=second_key)
        self.mean = eqx.nn.Linear(ACTOR_WIDTH, action_size, key=mean_key)
        self.log_std = eqx.nn.Linear(ACTOR_WIDTH, action_size, key=log_std_key)

    def __call__(
        self, observation: Float[Array, " obs"]
    ) -> tuple[Float[Array, " act"], Float[Array, " act"]]:
        """Mean and log-std before the tanh."""
        hidden = jax.nn.relu(self.second(jax.nn.relu(self.first(observation))))
        return self.mean(hidden), jnp.clip(self.log_std(hidden), *LOG_STD_RANGE)

    def policy(self, *, scale: float) -> MLPPolicy:
        """The same policy in the package's own type, over actions in [-scale, scale]."""
        first, second, mean, log_std = (
            Layer(layer.weight, jnp.asarray(layer.bias))
            for layer in (self.first, self.second, self.mean, self.log_std)
        )
        return MLPPolicy(
            (first, second),
            mean,
            log_std,
            nonlinearity="relu",
            distribution="tanh_gaussian",
            action_scale=scale,
            log_std_min=LOG_STD_RANGE[0],
            log_std_max=LOG_STD_RANGE[1],
        )


class Critics(eqx.Module):
    """Two values of an action at once; layer norm keeps them tame at a high learning rate."""

    first: Float[Array, "2 in hidden"]
    second: Float[Array, "2 hidden hidden"]
    last: Float[Array, "2 hidden"]
    biases: tuple[Float[Array, "2 1 hidden"], Float[Array, "2 1 hidden"], Float[Array, "2 1"]]
    scales: tuple[Float[Array, "2 1 hidden"], Float[Array, "2 1 hidden"]]
    shifts: tuple[Float[Array, "2 1 hidden"], Float[Array, "2 1 hidden"]]

    def __init__(self, inputs: int, *, key: PRNGKeyArray):
        first_key, second_key, last_key = jax.random.split(key, 3)
        width = CRITIC_WIDTH

        def uniform(key: PRNGKeyArray, shape: tuple[int, ...], fan_in: int) -> Array:
            return jax.random.uniform(key, shape, minval=-(fan_in**-0.5), maxval=fan_in**-0.5)

        self.first = uniform(first_key, (2, inputs, width), inputs)
        self.second = uniform(second_key, (2, width, width), width)
        self.last = uniform(last_key, (2, width), width)
        self.biases = (jnp.zeros((2, 1, width)), jnp.zeros((2, 1, width)), jnp.zeros((2, 1)))
        self.scales = (jnp.ones((2, 1, width)), jnp.ones((2, 1, width)))
        self.shifts = (jnp.zeros((2, 1, width)), jnp.zeros((2, 1, width)))

    def __call__(
        self, observation: Float[Array, "batch obs"], action: Float[Array, "batch act"]
    ) -> Float[Array, "2 batch"]:
        inputs = jnp.concatenate([observation, action], axis=-1)
        hidden = jnp.einsum("bi,cio->cbo", inputs, self.first) + self.biases[0]
        hidden = jax.nn.relu(standardise(hidden) * self.scales[0] + self.shifts[0])
        hidden = jnp.einsum("cbi,cio->cbo", hidden, self.second) + self.biases[1]
        hidden = jax.nn.relu(standardise(hidden) * self.scales[1] + self.shifts[1])
        return jnp.einsum("cbi,ci->cb", hidden, self.last) + self.biases[2]


def standardise(values: Float[Array, "*batch hidden"]) -> Float[Array, "*batch hidden"]:
    centred = values - jnp.mean(values, axis=-1, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.mean(centred**2, axis=-1, keepdims=True) + 1e-5)


class Batch(NamedTuple):
    observation: Float[Array, "batch obs"]
    action: Float[Array, "batch act"]  # in [-1, 1]
    reward: Float[Array, " batch"]
    next_observation: Float[Array, "batch obs"]
    terminated: Float[Array, " batch"]
    noise: Float[Array, "2 batch act"]  # drawn beforehand: random numbers are slow inside the scan


class Learner(NamedTuple):
    """All that an update changes."""

    actor: Actor
    critics: Critics
    target_critics: Critics
    log_temperature: Scalar
    actor_state: optax.OptState
    critic_state: optax.OptState
    temperature_state: optax.OptState


class Replay:
    """Every transition so far; a cut-off by the time limit is no end, so values run on through it."""

    def __init__(self, capacity: int, observation_size: int, action_size: int):
        self.size = 0
        shapes = ((observation_size,), (action_size,), (), (observation_size,), ())
        self.columns = tuple(np.zeros((capacity, *shape), np.float32) for shape in shapes)

    def add(self, *transition: npt.ArrayLike) -> None:
        """One transition, in the order of `Batch`."""
        for column, value in zip(self.columns, transition, strict=True):
            column[self.size] = value
        self.size += 1

    def batches(self, count: int, random: np.random.Generator) -> Batch:
        row = random.integers(self.size, size=(count, BATCH))
        action_size = self.columns[1].shape[1]
        noise = random.standard_normal((count, 2, BATCH, action_size), np.float32)
        columns = (*(column[row] for column in self.columns), noise)
        return Batch(*map(jnp.asarray, columns))


def begin(observation_size: int, action_size: int, *, key: PRNGKeyArray) -> Learner:
    actor_key, critic_key = jax.random.split(key)
    actor = Actor(observation_size, action_size, key=actor_key)
    critics = Critics(observation_size + action_size, key=critic_key)
    log_temperature = jnp.zeros(())
    return Learner(
        actor=actor,
        critics=critics,
        target_critics=critics,
        log_temperature=log_temperature,
        actor_state=OPTIMISER.init(actor),
        critic_state=OPTIMISER.init(critics),
        temperature_state=OPTIMISER.init(log_temperature),
    )


def sample(
    actor: Actor, observation: Float[Array, "batch obs"], noise: Float[Array, "batch act"]
) -> tuple[Float[Array, "batch act"], Float[Array, " batch"]]:
    """Actions and their log-probabilities."""
    mean, log_std = jax.vmap(actor)(observation)
    raw = mean + jnp.exp(log_std) * noise
    gaussian = -0.5 * noise**2 - log_std - 0.5 * jnp.log(2 * jnp.pi)
    # log(1 - tanh(raw)^2), without the subtraction that loses all digits near the boundary.
    log_slope = 2 * (jnp.log(2.0) - raw - jax.nn.softplus(-2 * raw))
    return jnp.tanh(raw), jnp.sum(gaussian - log_slope, axis=-1)


def update(learner: Learner, batch: Batch, *, training: Training) -> tuple[Learner, Scalar]:
    """One step of critics, actor and temperature; gives back the mean value for the progress line."""
    temperature = jnp.maximum(jnp.exp(learner.log_temperature), training.lowest_temperature)
    action_size = batch.action.shape[-1]

    next_action, next_log_prob = sample(learner.actor, batch.next_observation, batch.noise[0])
    next_value = jnp.min(learner.target_critics(batch.next_observation, next_action), axis=0)
    future = (1 - batch.terminated) * (next_value - temperature * next_log_prob)
    target = jax.lax.stop_gradient(batch.reward + training.discount * future)

    def critic_loss(critics: Critics) -> Scalar:
        return jnp.mean((critics(batch.observation, batch.action) - target) ** 2)

    changes, critic_state = OPTIMISER.update(jax.grad(critic_loss)(learner.critics), learner.critic_state)
    critics = eqx.apply_updates(learner.critics, changes)

    def actor_loss(actor: Actor) -> tuple[Scalar, Scalar]:
        action, log_prob = sample(actor, batch.observation, batch.noise[1])
        value = jnp.min(critics(batch.observation, action), axis=0)
        return jnp.mean(temperature * log_prob - value), jnp.mean(log_prob)

    actor_gradient, log_prob = jax.grad(actor_loss, has_aux=True)(learner.actor)
    changes, actor_state = OPTIMISER.update(actor_gradient, learner.actor_state)
    actor = eqx.apply_updates(learner.actor, changes)

    excess_entropy = -log_prob + action_size  # over the usual target of -1 per action number
    changes, temperature_state = OPTIMISER.update(excess_entropy, learner.temperature_state)
    learner = Learner(
        actor=actor,
        critics=critics,
        target_critics=jax.tree.map(
            lambda old, new: old + TARGET_RATE * (new - old), learner.target_critics, critics
        ),
        log_temperature=learner.log_temperature + changes,
        actor_state=actor_state,
        critic_state=critic_state,
        temperature_state=temperature_state,
    )
    return learner, jnp.mean(target)


@partial(jax.jit, static_argnames="training")
def update_round(learner: Learner, batches: Batch, *, training: Training) -> tuple[Learner, Scalar]:
    learner, value = jax.lax.scan(partial(update, training=training), learner, batches)
    return learner, jnp.mean(value)


class Acting:
    """The actor in NumPy: for one state at a time, a compiled call costs more than the arithmetic."""

    def __init__(self, actor: Actor):
        self.first, self.second, self.mean, self.log_std = (
            (np.asarray(layer.weight), np.asarray(layer.bias))
            for layer in (actor.first, actor.second, actor.mean, actor.log_std)
        )

    def __call__(self, observation: npt.NDArray, random: np.random.Generator) -> npt.NDArray:
        """An action in [-1, 1]."""
        hidden = observation.astype(np.float32)
        for weight, bias in (self.first, self.second):
            hidden = np.maximum(weight @ hidden + bias, 0)
        mean = self.mean[0] @ hidden + self.mean[1]
        log_std = np.clip(self.log_std[0] @ hidden + self.log_std[1], *LOG_STD_RANGE)
        return np.tanh(mean + np.exp(log_std) * random.standard_normal(mean.shape, np.float32))


def action_scale(environment: gymnasium.Env) -> float:
    """The bound of the actions, which must be the same in every direction."""
    space = environment.action_space
    if not isinstance(space, gymnasium.spaces.Box) or len(space.shape) != 1:
        raise SystemExit(f"only vectors of numbers can be actions here, not {space}")
    scale = float(space.high[0])
    if not (np.isfinite(scale) and np.all(space.high == scale) and np.all(space.low == -scale)):
        raise SystemExit(f"action bounds must be symmetric, finite and equal, not {space}")
    return scale


def untrained_policy(environment_id: str, seed: int) -> MLPPolicy:
    """What a training run of this seed begins with."""
    environment = gymnasium.make(environment_id, **OPTIONS.get(environment_id, {}))
    sizes = environment.observation_space.shape[0], environment.action_space.shape[0]  # type: ignore[index]
    return begin(*sizes, key=jax.random.key(seed)).actor.policy(scale=action_scale(environment))


def snapshots_of_training(
    environment_id: str, *, seed: int, steps: int, snapshots: int, training: Training = USUAL
) -> Iterator[tuple[int, MLPPolicy]]:
    """The step and the policy after each of `snapshots` equal parts of training."""
    environment = gymnasium.make(environment_id, **OPTIONS.get(environment_id, {}))
    scale = action_scale(environment)
    observation, _ = environment.reset(seed=seed)
    observation_size, action_size = observation.shape[0], environment.action_space.shape[0]  # type: ignore[index]
    random = np.random.default_rng(seed)
    learner = begin(observation_size, action_size, key=jax.random.key(seed))
    acting = Acting(learner.actor)
    replay = Replay(steps, observation_size, action_size)
    due = [steps * (number + 1) // snapshots for number in range(snapshots)]
    returns, value, started = [0.0], 0.0, time.perf_counter()

    for step in range(1, steps + 1):
        if step <= training.warm_up:
            action = random.uniform(-1, 1, action_size).astype(np.float32)
        else:
            action = acting(observation, random)
        following, reward, terminated, truncated, _ = environment.step(scale * action)
        replay.add(observation, action, float(reward), following, terminated)
        returns[-1] += float(reward)
        observation = following
        if terminated or truncated:
            observation, _ = environment.reset()
            returns.append(0.0)
        if step > training.warm_up and step % ROUND == 0:
            batches = replay.batches(ROUND, random)
            learner, value = update_round(learner, batches, training=training)
            acting = Acting(learner.actor)
        if step % max(1_000, steps // 20 // 1_000 * 1_000) == 0:
            recent = np.mean(returns[-6:-1] or returns)
            print(
                f"{environment_id} seed {seed} step {step}/{steps}: recent return {recent:.1f}, "
                f"value {float(value):.1f}, temperature {float(jnp.exp(learner.log_temperature)):.3f}, "
                f"{time.perf_counter() - started:.0f} s",
                flush=True,
            )
        if step in due:
            yield step, learner.actor.policy(scale=scale)
    environment.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--environment", default="Pendulum-v1")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--snapshots", type=int, default=40)
    for name, value in USUAL._asdict().items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    training = Training(options.discount, options.lowest_temperature, options.warm_up)
    policies = snapshots_of_training(
        options.environment,
        seed=options.seed,
        steps=options.steps,
        snapshots=options.snapshots,
        training=training,
    )
    for step, policy in policies:
        save_policy(policy, options.output / f"step_{step:07d}.safetensors")


if __name__ == "__main__":
    main()
