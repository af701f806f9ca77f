"""The compiled roll-out against the eager yardstick, with all branches alive and with few."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from plain_rollout import PlainModel, imagine_plainly, plain_policy
from shapes import (
    AUTHORS_EPISODE,
    EPISODES,
    POLICIES,
    architecture,
    make_world,
    paper_settings,
    starts,
    tanh_policies,
    with_alive,
)
from telling import cores, say, tell, threads
from timing import fastest
from yardstick import Yardstick
from yardstick_rollout import imagine

from vlbm.cores import use_cores
from vlbm.models.base import ready
from vlbm.models.branching import BranchingModel
from vlbm.policies.mlp import MLPPolicy
from vlbm.rollout import rollout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policies", type=int, default=POLICIES)
    parser.add_argument("--episodes", type=int, default=EPISODES, help="of every policy")
    parser.add_argument("--branches", type=int, default=10)
    parser.add_argument("--alive", type=int, default=2, help="branches that matter in the second round")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--long", type=int, default=1000, help="steps of the single episode")
    parser.add_argument("--repeats", type=int, default=9, help="the fastest counts, of all alike")
    arguments = parser.parse_args()
    use_cores()  # as the command line does, unless this process was told of its devices
    threads()
    settings = paper_settings(branches=arguments.branches)
    world = make_world(settings)
    policies = tanh_policies(arguments.policies)
    start, repeats = starts(arguments.episodes), arguments.repeats
    shape = f"{arguments.policies} x {arguments.episodes} episodes, {arguments.steps} steps"
    figures: dict[str, Any] = {"cores": cores(), **same_numbers(world, policies, start)}
    alive = {"all": arguments.branches, "few": arguments.alive}
    for name, count in alive.items():
        chosen = with_alive(world, count)
        ours = fastest(ours_of(chosen, policies, start, arguments.steps), repeats=repeats)
        yardstick = Yardstick(architecture(settings), arguments.branches).load(chosen)
        tuned = fastest(theirs_of(yardstick, policies, start, arguments.steps), repeats=repeats)
        plain = fastest(plainly_of(chosen, policies, start, arguments.steps), repeats=repeats)
        say(f"{shape}, {count} of {arguments.branches} branches alive: vlbm {ours:.2f} s")
        say(f"  eager PyTorch as a user would write it {plain:.2f} s, ratio {plain / ours:.2f}")
        say(f"  with branches and policies in one product {tuned:.2f} s, ratio {tuned / ours:.2f}")
        figures |= {
            f"{name}_seconds": ours,
            f"{name}_plain_seconds": plain,
            f"{name}_ratio": plain / ours,
            f"{name}_tuned_seconds": tuned,
            f"{name}_tuned_ratio": tuned / ours,
        }
    one = dict(list(policies.items())[:1])
    single = fastest(ours_of(world, one, start[:1], arguments.long), repeats=repeats)
    times = AUTHORS_EPISODE * arguments.long / 1000 / single
    say(f"one episode of {arguments.long} steps: {single:.3f} s, {times:.0f} times the authors' speed")
    tell({**figures, "episode_seconds": single, "episode_times": times})


def ours_of(
    world: BranchingModel, policies: dict[str, MLPPolicy], start: np.ndarray, steps: int
) -> Callable[[], Any]:
    """One evaluation's roll-out, as an evaluator asks for it: a world is made ready once, for all of them."""
    stepping = ready(world)

    def call() -> Any:
        return rollout(
            stepping,
            policies,
            start=start,
            episodes=len(start),
            horizon=steps,
            key=jax.random.key(0),
        )

    return call


def theirs_of(
    model: Yardstick, policies: dict[str, MLPPolicy], start: np.ndarray, steps: int
) -> Callable[[], Any]:
    return lambda: imagine(model, list(policies.values()), start, horizon=steps) and None


def plainly_of(
    world: BranchingModel, policies: dict[str, MLPPolicy], start: np.ndarray, steps: int
) -> Callable[[], Any]:
    model, acting = PlainModel(world), [plain_policy(policy) for policy in policies.values()]
    return lambda: imagine_plainly(model, acting, start, horizon=steps) and None


def same_numbers(world: BranchingModel, policies: dict[str, MLPPolicy], start: np.ndarray) -> dict[str, Any]:
    """How far the two differ after five steps of means: they are the same model, or nothing is compared."""
    still = replace(world, imagination=replace(world.imagination, sampling="none"))
    ours = rollout(still, policies, start=start, episodes=len(start), horizon=5, key=jax.random.key(0))
    model = Yardstick(architecture(paper_settings()), world.branches).load(world)
    tuned = imagine(model, list(policies.values()), start, horizon=5, random=False).reward.numpy()
    acting = [plain_policy(policy) for policy in policies.values()]
    plain = imagine_plainly(PlainModel(world), acting, start, horizon=5, random=False).reward.numpy()
    reward = np.stack([episodes.reward.reshape(-1, 5).T for episodes in ours.values()], axis=1)
    difference = max(float(np.abs(reward - theirs).max()) for theirs in (tuned, plain))
    held = sum(leaf.size for leaf in jax.tree.leaves(world))
    assert held == sum(value.numel() for value in model.state_dict().values())
    assert difference < 1e-3, f"the yardstick is another model: rewards differ by {difference}"
    say(f"same model: {held:,} numbers, rewards of five steps differ by {difference:.1e} at most")
    return {"numbers": held, "difference": difference}


if __name__ == "__main__":
    main()
