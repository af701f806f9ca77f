"""How time grows with steps, branches, episodes and policies: fitted exponents of power laws.

An exponent of 1 is a cost per piece, below 1 says that pieces share something, above 1 that they get dearer.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
from fitting import step_seconds
from rollout import ours_of
from shapes import make_world, paper_settings, starts, tanh_policies
from telling import cores, say, tell
from timing import fastest

from vlbm.estimators.world_models.vlbm import VLBM


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="*", choices=list(SERIES), default=list(SERIES))
    arguments = parser.parse_args()
    figures: dict[str, Any] = {"cores": cores()}
    for name in arguments.only:
        sizes, measure = SERIES[name]
        seconds = [measure(size) for size in sizes]
        exponent = fitted(sizes, seconds)
        points = ", ".join(f"{size}: {time:.3f} s" for size, time in zip(sizes, seconds, strict=True))
        say(f"{name}: {points}; exponent {exponent:.2f}")
        figures |= {f"{name}_sizes": sizes, f"{name}_seconds": seconds, f"{name}_exponent": exponent}
    tell(figures)


def fitted(sizes: list[int], seconds: list[float]) -> float:
    """The slope of log time against log size."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def training(**shape: Any) -> float:
    """Seconds of a training step of the default preset but for its shape."""
    return step_seconds(VLBM(**shape))


def imagined(*, policies: int, episodes: int) -> float:
    """Seconds of a roll-out of 50 steps with the paper's sizes."""
    call = ours_of(make_world(paper_settings()), tanh_policies(policies), starts(episodes), 50)
    return fastest(call, repeats=3)


SERIES: dict[str, tuple[list[int], Callable[[int], float]]] = {
    "window": ([10, 30, 90], lambda size: training(window=size, batch=64)),
    "branches": ([2, 5, 12], lambda size: training(branches=size, window=10, batch=64)),
    "episodes": ([20, 60, 180], lambda size: imagined(policies=4, episodes=size)),
    "policies": ([2, 6, 18], lambda size: imagined(policies=size, episodes=40)),
}


if __name__ == "__main__":
    main()
