"""Build the embedded Pendulum task: target policies, their true returns, and episodes logged by others."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from selection import at_levels, logging_indices, logging_names, summary
from train_policies import snapshots_of_training, untrained_policy
from vlbm.data.episodes import Episodes, concatenate, from_padded
from vlbm.data.readers.npz import save_npz
from vlbm.policies import MLPPolicy, save_policy

ENVIRONMENT = "Pendulum-v1"
HORIZON = 200
DISCOUNT = 0.995
TARGETS = 11
TARGET_SEEDS = (0, 2)
BEHAVIOUR_SEED = 1
TRAINING_STEPS = 6_000
SNAPSHOTS = 120  # one after every round of updates: the climb from poor to good is steep
SELECTION_EPISODES = 500
TRUTH_EPISODES = 5_000
# How good each logging policy is, from 0 (the worst snapshot) to 1 (the best), and how often it acted.
BEHAVIOUR = ((1.0, 60), (0.6, 60), (0.3, 40), (0.0, 40))
SELECTION_SEED, TRUTH_SEED, LOG_SEED = 100, 200, 300
DATA = Path(__file__).parents[1] / "src" / "vlbm" / "suites" / "data" / "pendulum"


class Snapshot(NamedTuple):
    policy: MLPPolicy
    seed: int
    step: int
    value: float  # discounted return of its mean actions, roughly


class Pendulum:
    """Gymnasium's Pendulum-v1, many at once."""

    def __init__(self, start: Float[np.ndarray, "episodes 2"]):
        self.angle, self.speed = start.T

    def observe(self) -> Float[np.ndarray, "episodes 3"]:
        return np.stack([np.cos(self.angle), np.sin(self.angle), self.speed], axis=1).astype(np.float32)

    def step(self, torque: Float[np.ndarray, " episodes"]) -> Float[np.ndarray, " episodes"]:
        """Move on, and give back the reward."""
        torque = np.clip(torque, -2, 2).astype(np.float64)
        upright = (self.angle + np.pi) % (2 * np.pi) - np.pi
        cost = upright**2 + 0.1 * self.speed**2 + 0.001 * torque**2
        self.speed = np.clip(self.speed + (15 * np.sin(self.angle) + 3 * torque) * 0.05, -8, 8)
        self.angle = self.angle + self.speed * 0.05
        return -cost


def check_simulator() -> None:
    """Stop if our Pendulum is not Gymnasium's, step for step."""
    environment = gymnasium.make(ENVIRONMENT)
    observation, _ = environment.reset(seed=0)
    pendulum = Pendulum(np.array([environment.unwrapped.state]))  # type: ignore[attr-defined]
    random = np.random.default_rng(0)
    for step in range(1, HORIZON + 1):
        np.testing.assert_allclose(pendulum.observe()[0], observation, atol=1e-5)
        action = random.uniform(-2, 2, 1).astype(np.float32)
        observation, reward, terminated, truncated, _ = environment.step(action)
        np.testing.assert_allclose(pendulum.step(action), float(reward), rtol=1e-5, atol=1e-5)
        assert not terminated
        assert truncated == (step == HORIZON)


@eqx.filter_jit
def choose(
    policy: MLPPolicy, observation: Float[Array, "batch obs"], key: PRNGKeyArray | None
) -> Float[Array, "batch act"]:
    """Sampled actions, or without a key mean actions."""
    return policy.mean(observation) if key is None else policy.sample(observation, key=key)


def run(policy: MLPPolicy, *, episodes: int, seed: int, sampled: bool) -> Episodes:
    """Episodes in lock-step; with the same seed, every policy begins at the same states."""
    start = np.random.default_rng(seed).uniform((-np.pi, -1), (np.pi, 1), (episodes, 2))
    pendulum = Pendulum(start)
    observations, actions, rewards = [pendulum.observe()], [], []
    for step in range(HORIZON):
        key = jax.random.fold_in(jax.random.key(seed), step) if sampled else None
        action = np.asarray(choose(policy, jnp.asarray(observations[-1]), key))
        rewards.append(pendulum.step(action[:, 0]))
        actions.append(action)
        observations.append(pendulum.observe())
    return from_padded(
        observation=np.stack(observations, axis=1),
        action=np.stack(actions, axis=1),
        reward=np.stack(rewards, axis=1).astype(np.float32),
        length=np.full(episodes, HORIZON),
        terminated=np.zeros(episodes, bool),
    )


def train(seed: int) -> list[Snapshot]:
    """The snapshots of one training run, each with a first look at its value."""
    found = []
    training = snapshots_of_training(ENVIRONMENT, seed=seed, steps=TRAINING_STEPS, snapshots=SNAPSHOTS)
    for step, policy in training:
        trial = run(policy, episodes=SELECTION_EPISODES, seed=SELECTION_SEED, sampled=False)
        found.append(Snapshot(policy, seed, step, float(trial.returns(DISCOUNT).mean())))
    return found


def nearest(snapshots: Sequence[Snapshot], levels: Sequence[float] | np.ndarray) -> list[Snapshot]:
    return [snapshots[index] for index in at_levels([snapshot.value for snapshot in snapshots], levels)]


def truth(policy: MLPPolicy, *, sampled: bool) -> dict[str, dict[str, float]]:
    episodes = run(policy, episodes=TRUTH_EPISODES, seed=TRUTH_SEED, sampled=sampled)
    return {
        "discounted": summary(episodes.returns(DISCOUNT)),
        "undiscounted": summary(episodes.returns()),
    }


def log(behaviour: Sequence[Snapshot]) -> tuple[Episodes, list[dict[str, object]]]:
    """Sampled episodes of each logging policy in random order, and who they are."""
    parts, notes = [], []
    for number, (snapshot, (level, count)) in enumerate(zip(behaviour, BEHAVIOUR, strict=True)):
        part = run(snapshot.policy, episodes=count, seed=LOG_SEED + number, sampled=True)
        answered = jnp.asarray(part.observation[part.observation_before])
        log_prob = snapshot.policy.log_prob(answered, jnp.asarray(part.action))
        parts.append(replace(part, log_prob=np.asarray(log_prob)))
        notes.append(
            {
                "level": level,
                "training_seed": snapshot.seed,
                "training_step": snapshot.step,
                "episodes": count,
                "logged_return": {
                    "discounted": summary(part.returns(DISCOUNT)),
                    "undiscounted": summary(part.returns()),
                },
            }
        )
    episodes = concatenate(parts)
    return episodes.select(np.random.default_rng(LOG_SEED).permutation(episodes.count)), notes


def save_logging(loggers: Sequence[Snapshot], output: Path) -> dict[str, object]:
    """The logging policies of the gym suite's five Pendulum data sets."""
    values = [snapshot.value for snapshot in loggers]
    chosen = logging_indices(values)
    names = {}
    for index in {chosen.expert, chosen.medium, *chosen.replay}:
        names[index] = f"logging_{loggers[index].step:07d}"
        save_policy(loggers[index].policy, output / f"{names[index]}.safetensors")
    save_policy(untrained_policy(ENVIRONMENT, BEHAVIOUR_SEED), output / "logging_random.safetensors")
    return logging_names(chosen, names)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=DATA)
    output = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    check_simulator()

    candidates = [snapshot for seed in TARGET_SEEDS for snapshot in train(seed)]
    targets = nearest(candidates, np.linspace(0, 1, TARGETS))
    policies = {}
    for number, snapshot in enumerate(targets):
        name = f"policy_{number:02d}"
        save_policy(snapshot.policy, output / f"{name}.safetensors")
        policies[name] = {
            "mean_actions": truth(snapshot.policy, sampled=False),
            "sampled_actions": truth(snapshot.policy, sampled=True),
            "training_seed": snapshot.seed,
            "training_step": snapshot.step,
        }
        print(name, json.dumps(policies[name]), flush=True)

    loggers = train(BEHAVIOUR_SEED)
    behaviour = nearest(loggers, [level for level, _ in BEHAVIOUR])
    episodes, behaviour_notes = log(behaviour)
    save_npz(episodes, output / "episodes.npz")

    description = {
        "environment": ENVIRONMENT,
        "options": {},
        "horizon": HORIZON,
        "observation_size": 3,
        "action_size": 1,
        "discount": DISCOUNT,
        "episodes_per_truth": TRUTH_EPISODES,
        "source": (
            "Made by scripts/make_pendulum.py. Policies are snapshots of soft actor-critic "
            f"(scripts/train_policies.py, {TRAINING_STEPS} steps): targets from training seeds "
            f"{' and '.join(map(str, TARGET_SEEDS))}, logging policies from seed {BEHAVIOUR_SEED}. "
            f"True returns are means over {TRUTH_EPISODES} simulated episodes (seed {TRUTH_SEED}, the same "
            f"initial states for every policy); logged episodes use seeds from {LOG_SEED}."
        ),
        "policies": policies,
        "behaviour": behaviour_notes,
        "logging": save_logging(loggers, output),
        "logging_seed": BEHAVIOUR_SEED,
    }
    (output / "truth.json").write_text(json.dumps(description, indent=2) + "\n")


if __name__ == "__main__":
    main()
