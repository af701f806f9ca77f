"""Seconds per gradient step of d3rlpy's FQE for one policy; runs in d3rlpy's own environment."""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import d3rlpy
import numpy as np
import torch
from d3rlpy.models.encoders import VectorEncoderFactory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, help="steps and a policy's layers, as fqe.py writes them")
    parser.add_argument("--units", type=int, nargs="+", default=[256, 256])
    parser.add_argument("--layer-norm", action="store_true")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=300)
    arguments = parser.parse_args()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    d3rlpy.seed(0)
    with np.load(arguments.data) as data:
        dataset = d3rlpy.dataset.MDPDataset(
            data["observation"], data["action"], data["reward"], data["terminal"], timeouts=data["timeout"]
        )
        policy = cloned(dataset, [(data[f"weight_{index}"], data[f"bias_{index}"]) for index in range(3)])
        seen, chosen = data["observation"][:64], data["chosen"]
    difference = float(np.abs(policy.predict(seen) - chosen).max())
    fqe = d3rlpy.ope.FQE(
        algo=policy,
        config=d3rlpy.ope.FQEConfig(
            batch_size=arguments.batch,
            gamma=0.995,
            encoder_factory=VectorEncoderFactory(arguments.units, use_layer_norm=arguments.layer_norm),
        ),
    )
    times = []
    for steps in (20, arguments.steps, arguments.steps):  # the first warms up
        began = clock()
        fqe.fit(
            dataset,
            n_steps=steps,
            n_steps_per_epoch=steps,
            logger_adapter=d3rlpy.logging.NoopAdapterFactory(),
            show_progress=False,
        )
        times.append((clock() - began) / steps)
    print(json.dumps({"seconds_per_step": min(times[1:]), "policy_difference": difference}))


def cloned(dataset, layers):
    """d3rlpy's deterministic tanh network with the weights of vlbm's policy."""
    units = [len(bias) for _, bias in layers[:-1]]
    algorithm = d3rlpy.algos.BCConfig(encoder_factory=VectorEncoderFactory(units)).create()
    algorithm.build_with_dataset(dataset)
    linear = [part for part in algorithm.impl.modules.imitator.modules() if isinstance(part, torch.nn.Linear)]
    with torch.no_grad():
        for part, (weight, bias) in zip(linear, layers, strict=True):
            part.weight.copy_(torch.from_numpy(weight))
            part.bias.copy_(torch.from_numpy(bias))
    return algorithm


def clock() -> float:
    """As vlbm is timed: processor time on one core, else the time of day."""
    return time.process_time() if len(os.sched_getaffinity(0)) == 1 else time.perf_counter()


if __name__ == "__main__":
    main()
