"""FQE of many policies against FQE of one, and against d3rlpy's FQE run once for every policy.

d3rlpy is timed on one policy, with all gradient steps, and the time multiplied; of both the faster of two
runs counts.
Three comparisons: `wide`, where vlbm is given d3rlpy's default network (two hidden layers of 256 units);
`narrow`, the same with 64 units; and `own`, vlbm's default network. vlbm's time is that of a whole
evaluation: the actions of all policies and the interval are in it.
Programs are compiled before, as d3rlpy has warmed up; how long the first evaluation took is told too.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from environments import PeerError, ask_peer
from measure import smooth_logs
from shapes import tanh_policies
from telling import cores, say, tell
from timing import timed

from vlbm.cores import use_cores
from vlbm.data.episodes import Episodes
from vlbm.estimators.fqe import FQE
from vlbm.policies.mlp import MLPPolicy

COMPARED = ("wide", "narrow", "own")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--policies", type=int, default=11)
    parser.add_argument("--episodes", type=int, default=200, help="logged ones, of 1,000 steps")
    parser.add_argument("--steps", type=int, default=FQE().steps, help="gradient steps")
    parser.add_argument("--peer-steps", type=int, help="gradient steps d3rlpy is timed on, if not all")
    everything = [*COMPARED, "one"]
    parser.add_argument("--only", nargs="*", choices=everything, default=everything)
    parser.add_argument("--repeats", type=int, default=2, help="evaluations, the first of which may compile")
    arguments = parser.parse_args()
    use_cores()  # as the command line does, unless this process was told of its devices
    logs = smooth_logs(episodes=arguments.episodes, length=1000)
    policies = tanh_policies(arguments.policies)
    own = FQE(rounds=1, steps=arguments.steps, twin=False)  # d3rlpy has one network, too
    wide, narrow = (replace(own, units=(size, size), layer_norm=False) for size in (256, 64))
    few = dict(list(policies.items())[:1])
    figures: dict[str, Any] = {
        "cores": cores(),
        "policies": len(policies),
        "logged_steps": logs.steps,
        "gradient_steps": arguments.steps,
    }
    runs = {"wide": wide, "narrow": narrow, "own": own}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data.npz"
        write(data, logs, next(iter(policies.values())))
        # Each right after the other: the machine may be faster or slower a few minutes later.
        for name in (each for each in runs if each in arguments.only):
            settings = runs[name]
            figures |= ours(name, settings, logs, policies, repeats=arguments.repeats)
            peer_steps = arguments.peer_steps or settings.steps
            figures |= theirs(name, settings, data, figures, peer_steps=peer_steps)
    if "one" in arguments.only:
        figures |= ours("one", own, logs, few, repeats=arguments.repeats)
    if "own" in arguments.only and "one" in arguments.only:
        figures["policies_ratio"] = figures["own_seconds"] / figures["one_seconds"]
    tell(figures)


def ours(
    name: str, settings: FQE, logs: Episodes, policies: dict[str, MLPPolicy], *, repeats: int
) -> dict[str, float]:
    """Seconds of the first evaluation, which may compile, and of the fastest."""
    # The peer knows no horizon.
    times = [
        timed(lambda: settings.fit(logs).evaluate(policies, horizon=math.inf) and None)
        for _ in range(repeats)
    ]
    say(f"vlbm, {name}, {settings.steps} steps: {min(times):.1f} s, at first {times[0]:.1f} s")
    return {f"{name}_first_seconds": times[0], f"{name}_seconds": min(times)}


def theirs(
    name: str,
    settings: FQE,
    data: Path,
    figures: dict[str, Any],
    *,
    peer_steps: int,
) -> dict[str, Any]:
    """The same by d3rlpy, policy after policy: one is timed, and the others cost the same."""
    options = ["--units", *map(str, settings.units), "--batch", str(settings.batch)]
    options += ["--steps", str(peer_steps), *["--layer-norm"] * settings.layer_norm]
    try:
        told = ask_peer("d3rlpy", "d3rlpy_fqe.py", str(data), *options)
    except PeerError as error:
        say(str(error))
        return {f"{name}_ratio": str(error)}
    seconds = told["seconds_per_step"] * settings.steps * figures["policies"]
    ratio = seconds / figures[f"{name}_seconds"]
    say(
        f"d3rlpy, layers {settings.units}: {1000 * told['seconds_per_step']:.2f} ms a step, "
        f"{seconds:.0f} s for {figures['policies']} policies and {settings.steps} steps; ratio {ratio:.2f}"
    )
    return {
        f"{name}_peer_seconds": seconds,
        f"{name}_ratio": ratio,
        f"{name}_first_ratio": seconds / figures[f"{name}_first_seconds"],
        "policy_difference": told["policy_difference"],
    }


def write(path: Path, logs: Episodes, policy: MLPPolicy) -> None:
    """What the peer needs: steps, one policy, and what that policy does at the first of them."""
    before = logs.observation[logs.observation_before]
    last = np.zeros(logs.steps, np.float32)
    last[np.cumsum(logs.length) - 1] = 1.0
    arrays = {
        "observation": before,
        "action": logs.action,
        "reward": logs.reward,
        "terminal": np.zeros_like(last),
        "timeout": last,
        "chosen": np.asarray(policy.mean(jnp.asarray(before[:64]))),
    }
    for index, layer in enumerate([*policy.hidden, policy.head]):
        arrays |= {f"weight_{index}": np.asarray(layer.weight), f"bias_{index}": np.asarray(layer.bias)}
    np.savez(path, **arrays)


if __name__ == "__main__":
    main()
