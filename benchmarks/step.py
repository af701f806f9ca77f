"""One training step of the paper's sizes against the eager yardstick, on windows of equal shape."""

from __future__ import annotations

import argparse

import torch
from fitting import step_seconds
from shapes import ACTIONS, OBSERVATIONS, architecture, paper_settings
from telling import cores, say, tell, threads
from timing import fastest
from yardstick import Yardstick

from vlbm.cores import use_cores
from vlbm.estimators.world_models.vlbm import VLBM


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--branches", type=int, default=10)
    parser.add_argument("--window", type=int, default=50)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=40, help="training steps of vlbm to measure")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    use_cores()  # as the command line does, unless this process was told of its devices
    shape = {name: getattr(arguments, name) for name in ("branches", "window", "batch")}
    settings = paper_settings(**shape)
    ours = step_seconds(settings, steps=arguments.steps)
    threads()
    theirs = eager_step(settings, repeats=arguments.repeats)
    say(
        f"{arguments.batch} windows of {arguments.window} steps, {arguments.branches} branches: "
        f"vlbm {ours:.3f} s, eager PyTorch {theirs:.3f} s, ratio {theirs / ours:.2f}"
    )
    tell({"cores": cores(), **shape, "seconds": ours, "eager_seconds": theirs, "ratio": theirs / ours})


def eager_step(settings: VLBM, *, repeats: int) -> float:
    """Seconds of a step of Adam on random windows."""
    assert settings.window is not None
    steps, batch = settings.window, settings.batch
    model = Yardstick(architecture(settings), settings.branches).train()
    parameters = dict(model.named_parameters())
    decayed = [each for name, each in parameters.items() if name.endswith(".weight")]
    others = [each for name, each in parameters.items() if not name.endswith(".weight")]
    groups = [{"params": decayed, "weight_decay": settings.weight_decay}, {"params": others}]
    optimiser = torch.optim.Adam(groups, lr=settings.learning_rate, fused=True)
    observation = torch.randn(steps + 1, batch, OBSERVATIONS)
    action, reward = torch.rand(steps, batch, ACTIONS) * 2 - 1, torch.randn(steps, batch)

    def step() -> None:
        optimiser.zero_grad()
        drawn = settings.drive == "own"
        model.loss(
            observation,
            action,
            reward,
            posterior_noise=torch.randn(steps + 1, batch, settings.latents),
            noise=torch.randn(settings.branches, steps, batch, settings.latents) if drawn else None,
            weights=settings.weights,
        ).backward()
        optimiser.step()

    return fastest(step, repeats=repeats)


if __name__ == "__main__":
    main()
