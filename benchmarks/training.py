"""One training step against the peak of the same process and cores."""

from __future__ import annotations

import argparse
import json
import time

import equinox as eqx
import jax
from measure import peak, products, smooth_logs

from vlbm.estimators.worlds.presets import PRESETS
from vlbm.estimators.worlds.vlbm import VLBM
from vlbm.training import minimise
from vlbm.windows import WindowSource


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="default", choices=list(PRESETS))
    parser.add_argument("--branches", type=int)
    parser.add_argument("--window", type=int)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--length", type=int, default=1000, help="steps of a logged episode")
    parser.add_argument("--steps", type=int, default=60)
    arguments = parser.parse_args()
    chosen = {name: getattr(arguments, name) for name in ("branches", "window", "batch")}
    changes = {name: value for name, value in chosen.items() if value is not None}
    settings = VLBM(**{**PRESETS[arguments.preset], **changes})
    logs = smooth_logs(episodes=64, length=arguments.length)
    source = WindowSource.of(logs)
    world = settings.make_world(logs, key=jax.random.key(0))

    def train(steps: int) -> float:
        schedule = VLBM(**{**vars(settings), "steps": steps, "validate_every": steps, "warm_up": 1}).schedule

        def loss(model, source, key):
            return settings.loss(model, source, steps=arguments.length, key=key)

        began = time.perf_counter()
        minimise(loss, world, source, schedule=schedule, validate=lambda model: 0.0, key=jax.random.key(1))
        return time.perf_counter() - began

    few, many = max(arguments.steps // 6, 1), arguments.steps
    for steps in (few, many):
        train(steps)  # compiles
    seconds = (train(many) - train(few)) / (many - few)

    def step(model):
        key = jax.random.key(0)
        return eqx.filter_grad(
            lambda model: settings.loss(model, source, steps=arguments.length, key=key).loss
        )(model)

    arrays, static = eqx.partition(world, eqx.is_inexact_array)
    operations = products(lambda arrays: step(eqx.combine(arrays, static)), arrays)
    best = peak()
    print(
        json.dumps(
            {
                "devices": len(jax.devices()),
                "seconds": seconds,
                "gigaflops": operations / 1e9,
                "share_of_peak": operations / seconds / best,
                "peak": best / 1e9,
            }
        )
    )


if __name__ == "__main__":
    main()
