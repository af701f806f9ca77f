"""The training step against the peak of the same process and cores, on one core and on all.

    python benchmarks/training.py --json training.json

Every count of cores is a process of its own, bound to that many. Within it a large product is timed before
and after every round of training, so that both meet the same machine; the share is the median over rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from fitting import Watch
from telling import tell_rows

AUTHORS_SECONDS = 71.0  # one iteration of the paper's shape in the authors' TensorFlow code, two such cores
TIMES = 8.0  # faster than that an iteration must be
STRETCHES = 4  # of steps in a round, the first of which is not counted
ROUNDS = 7


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--within", metavar="PRESET", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.within:
        print(json.dumps(measure_step(arguments.within)))
        return
    rows = []
    for cores in sorted({1, len(os.sched_getaffinity(0))}):
        figures = on_cores(cores, "default")
        rows.append(
            {
                "name": f"training step, share of the peak of {cores} core{'s' * (cores > 1)}",
                "value": figures["share"],
                "unit": "",
                "target": "none",
                "met": None,
                "detail": f"{figures['seconds'] * 1e3:.1f} ms, {figures['rate'] / 1e9:.0f} of "
                f"{figures['peak'] / 1e9:.0f} GFLOP/s",
            }
        )
    figures = on_cores(len(os.sched_getaffinity(0)), "paper")
    rows.append(
        {
            "name": "iteration of the paper's shape, against the authors' 71 s",
            "value": AUTHORS_SECONDS / figures["seconds"],
            "unit": "times",
            "target": f">= {TIMES:g}",
            "met": AUTHORS_SECONDS / figures["seconds"] >= TIMES,
            "detail": f"{figures['seconds']:.2f} s for 64 episodes of 1,000 steps, 10 branches; "
            f"{figures['share']:.2f} of the peak",
        }
    )
    tell_rows(rows, arguments.json)


def on_cores(count: int, preset: str) -> dict[str, float]:
    """The figures of a process that may use so many cores."""
    cores = ",".join(str(core) for core in sorted(os.sched_getaffinity(0))[:count])
    command = ["taskset", "-c", cores, sys.executable, __file__, "--within", preset]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def measure_step(preset: str) -> dict[str, float]:
    import equinox as eqx
    import jax
    from measure import peak_time, products, smooth_logs

    from vlbm.cores import use_cores
    from vlbm.data.sampler import Sampler
    from vlbm.data.view import EpisodeView
    from vlbm.estimators.world_models.presets import PRESETS
    from vlbm.estimators.world_models.vlbm import VLBM
    from vlbm.nn.optimiser import Schedule
    from vlbm.nn.training import FEWEST, MOST, evaluate_loss, train
    from vlbm.parallel import run_parallel

    use_cores()  # as the command line does
    length = 1000
    settings = VLBM(**PRESETS["vlbm"][preset])
    whole = settings.window is None  # takes most of a minute a stretch, so one round must do
    # As in a fit, stretches are compiled calls: the memory of a step is claimed once for all of them.
    stretch, stretches = (FEWEST if whole else MOST), STRETCHES
    settings = replace(settings, steps=stretch * stretches, validate_every=stretch, warm_up=0)
    logs = smooth_logs(episodes=64, length=length)
    sampler = Sampler.of(EpisodeView.of(logs))
    world = settings.make_world(logs, key=jax.random.key(0))
    # Models train side by side, as in a fit; each core needs one to be busy.
    models = min(settings.models, len(jax.devices()))

    def round_of_steps() -> float:
        """Seconds per step, whichever model made it."""
        watches = [Watch() for _ in range(models)]

        def run(watch: Watch, devices: Any) -> None:
            train(
                evaluate_loss,
                world,
                sampler,
                constants=(settings,),
                schedule=Schedule.of(settings),
                validate=lambda model: 0.0,
                key=jax.random.key(1),
                batch=settings.plan(length),
                devices=devices,
                progress=watch,
            )

        run_parallel([partial(run, watch) for watch in watches], batch=settings.batch)
        return 1.0 / sum(watch.rate() for watch in watches)

    peak_time()
    if not whole:
        round_of_steps()  # compiles
    pairs = []
    for _ in range(1 if whole else ROUNDS):
        before, seconds = peak_time(), round_of_steps()
        pairs.append((seconds, min(before, peak_time())))
    arrays, static = eqx.partition(world, eqx.is_inexact_array)
    batch = sampler.draw(settings.plan(length), jax.random.key(0))
    operations = products(
        jax.grad(lambda arrays: settings.loss(eqx.combine(arrays, static), batch, jax.random.key(0)).loss),
        arrays,
    )
    return {
        "seconds": statistics.median(step for step, _ in pairs),
        "rate": operations / statistics.median(step for step, _ in pairs),
        "peak": 1.0 / statistics.median(product for _, product in pairs),
        "share": statistics.median(operations * product / step for step, product in pairs),
    }


if __name__ == "__main__":
    main()
