"""Importance sampling against SCOPE-RL's, on the same episodes: times, and whether the values agree.

SCOPE-RL is given the probabilities of all actions; vlbm asks the policies for them, and that is in its time.
Both resample episodes for an interval, equally often.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
from environments import PeerError, ask_peer
from shapes import OBSERVATIONS, categorical_policies
from telling import cores, say, tell
from timing import fastest

from vlbm.data.episodes import Episodes
from vlbm.estimators.importance import ImportanceEvaluator, ImportanceSampling, Kind
from vlbm.policies.mlp import MLPPolicy

DISCOUNT = 0.995


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--policies", type=int, default=11)
    parser.add_argument("--episodes", type=int, default=5000)
    parser.add_argument("--length", type=int, default=20)
    parser.add_argument("--actions", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    # The first one acted when the episodes were logged.
    behaviour, *targets = categorical_policies(arguments.policies + 1, actions=arguments.actions)
    policies = {f"policy {index}": policy for index, policy in enumerate(targets)}
    logs = logged(behaviour, episodes=arguments.episodes, length=arguments.length)
    figures: dict[str, Any] = {"cores": cores(), "episodes": logs.count, "steps": logs.steps}
    values: dict[str, np.ndarray] = {}
    for kind in get_args(Kind):
        evaluator = ImportanceSampling(kind=kind).fit(logs)

        def evaluate(evaluator: ImportanceEvaluator = evaluator, kind: str = kind) -> None:
            estimates = evaluator.evaluate(policies, discount=DISCOUNT, actions="sample")
            values[kind] = np.array([row.value for row in estimates.rows])

        figures[f"{kind}_seconds"] = fastest(evaluate, repeats=arguments.repeats)
    try:
        theirs = from_peer(logs, policies)
    except PeerError as error:
        say(str(error))
        tell({**figures, "ratio": str(error), "difference": str(error)})
        return
    differences = []
    for kind, peer in theirs.items():
        difference = float(np.abs(np.array(peer["values"]) / values[kind] - 1).max())
        differences.append(difference)
        ours = figures[f"{kind}_seconds"]
        say(
            f"{kind}: vlbm {ours:.3f} s, SCOPE-RL {peer['seconds']:.3f} s, ratio "
            f"{peer['seconds'] / ours:.1f}; values differ by {difference:.1e} at most"
        )
        figures |= {f"{kind}_peer_seconds": peer["seconds"], f"{kind}_difference": difference}
    total = sum(figures[f"{kind}_seconds"] for kind in theirs)
    figures["ratio"] = sum(peer["seconds"] for peer in theirs.values()) / total
    tell({**figures, "difference": max(differences)})


def logged(behaviour: MLPPolicy, *, episodes: int, length: int) -> Episodes:
    """Random observations, actions of the behaviour policy, and rewards that depend on both."""
    random = np.random.default_rng(0)
    observation = random.normal(size=(episodes * (length + 1), OBSERVATIONS)).astype(np.float32)
    before = observation.reshape(episodes, length + 1, -1)[:, :-1].reshape(-1, OBSERVATIONS)
    action = behaviour.sample(jnp.asarray(before), key=jax.random.key(0))
    return Episodes(
        observation=observation,
        action=np.asarray(action),
        reward=(1.0 + np.tanh(before[:, 0]) * (np.asarray(action) == 0)).astype(np.float32),
        length=np.full(episodes, length),
        terminated=np.zeros(episodes, bool),
        log_prob=np.asarray(behaviour.log_prob(jnp.asarray(before), action)),
        n_actions=behaviour.action_size,
    )


def from_peer(logs: Episodes, policies: dict[str, MLPPolicy]) -> dict[str, Any]:
    before = jnp.asarray(logs.observation[logs.observation_before])
    ids = [jnp.full(logs.steps, action) for action in range(logs.action_size)]
    probabilities = [
        np.exp(np.stack([np.asarray(policy.log_prob(before, each), np.float64) for each in ids], axis=-1))
        for policy in policies.values()
    ]
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data.npz"
        np.savez(
            data,
            probabilities=np.stack(probabilities),
            action=logs.action,
            reward=logs.reward,
            log_prob=np.asarray(logs.log_prob),
            length=np.array(logs.length[0]),
        )
        return ask_peer("scope_rl", "scope_rl_importance.py", str(data), "--discount", str(DISCOUNT))


if __name__ == "__main__":
    main()
