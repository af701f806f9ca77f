"""The compiled roll-out against eager PyTorch, plainly written and tuned."""

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
    within_yardstick,
)
from telling import cores, say, tell, threads
from timing import fastest
from yardstick import Yardstick
from yardstick_rollout import imagine

from vlbm.cores import use_cores
from vlbm.estimators.world_models.vlbm import VLBM
from vlbm.policies.mlp import MLPPolicy
from vlbm.worlds.rollout import rollout
from vlbm.worlds.vlbm import BranchingModel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policies", type=int, default=POLICIES)
    parser.add_argument("--episodes", type=int, default=EPISODES, help="of every policy")
    parser.add_argument("--branches", type=int, default=10)
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
    figures: dict[str, Any] = {"cores": cores(), **same_numbers(settings, policies, start)}
    ours = fastest(ours_of(world, policies, start, arguments.steps), repeats=repeats)
    yardstick = Yardstick(architecture(settings), arguments.branches)
    tuned = fastest(theirs_of(yardstick, policies, start, arguments.steps), repeats=repeats)
    plain = fastest(plainly_of(world, policies, start, arguments.steps), repeats=repeats)
    say(f"{shape}, {arguments.branches} branches: vlbm {ours:.2f} s")
    say(f"  eager PyTorch as a user would write it {plain:.2f} s, ratio {plain / ours:.2f}")
    say(f"  with branches and policies in one product {tuned:.2f} s, ratio {tuned / ours:.2f}")
    # Named so since there were figures with few branches alive as well: results stay comparable.
    figures |= {
        "all_seconds": ours,
        "all_plain_seconds": plain,
        "all_ratio": plain / ours,
        "all_tuned_seconds": tuned,
        "all_tuned_ratio": tuned / ours,
    }
    one = dict(list(policies.items())[:1])
    single = fastest(ours_of(world, one, start[:1], arguments.long), repeats=repeats)
    times = AUTHORS_EPISODE * arguments.long / 1000 / single
    say(f"one episode of {arguments.long} steps: {single:.3f} s, {times:.0f} times the authors' speed")
    tell({**figures, "episode_seconds": single, "episode_times": times})


def ours_of(
    world: BranchingModel, policies: dict[str, MLPPolicy], start: np.ndarray, steps: int
) -> Callable[[], Any]:
    """One evaluation's roll-out, as an evaluator asks for it."""

    def call() -> Any:
        return rollout(
            world,
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


def same_numbers(settings: VLBM, policies: dict[str, MLPPolicy], start: np.ndarray) -> dict[str, Any]:
    """How far rewards of five steps of means differ: it is the same model, or nothing is compared."""
    world, (smaller, within) = make_world(settings), within_yardstick(settings)
    acting = [plain_policy(policy) for policy in policies.values()]
    yardstick = Yardstick(architecture(smaller), smaller.branches).load(within)
    pairs = {
        "plain": (world, imagine_plainly(PlainModel(world), acting, start, horizon=5, random=False)),
        "tuned": (within, imagine(yardstick, list(policies.values()), start, horizon=5, random=False)),
    }
    differences = {
        name: float(np.abs(rewards_of(model, policies, start) - found.reward.numpy()).max())
        for name, (model, found) in pairs.items()
    }
    for name, difference in differences.items():
        assert difference < 1e-3, f"the {name} yardstick is another model: rewards differ by {difference}"
    difference = max(differences.values())
    say(f"same model: rewards of five steps differ by {difference:.1e} at most")
    return {"numbers": sum(leaf.size for leaf in jax.tree.leaves(world)), "difference": difference}


def rewards_of(world: BranchingModel, policies: dict[str, MLPPolicy], start: np.ndarray) -> np.ndarray:
    """Of five steps of means, [steps, policies, episodes]."""
    still = replace(world, imagination=replace(world.imagination, sampling="none"))
    imagined = rollout(still, policies, start=start, episodes=len(start), horizon=5, key=jax.random.key(0))
    return np.stack([episodes.reward.reshape(-1, 5).T for episodes in imagined.values()], axis=1)


if __name__ == "__main__":
    main()
