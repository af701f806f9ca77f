"""How long it takes to start: the import, the help, and the way to the first training step."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from telling import cores, say, tell
from timing import timed

# A whole process up to the first training step of the default preset, on data of HalfCheetah's sizes.
FIRST_STEP = """
import jax
from measure import smooth_logs
from vlbm.estimators.worlds.vlbm import VLBM
from vlbm.training import minimise
from vlbm.windows import WindowSource

settings = VLBM(steps=1, warm_up=0, validate_every=1)
logs = smooth_logs(episodes=8, length=100)

def loss(model, source, key):
    return settings.loss(model, source, steps=100, key=key)

world = settings.make_world(logs, key=jax.random.key(0))
minimise(
    loss, world, WindowSource.of(logs), schedule=settings.schedule, validate=lambda model: 0.0,
    key=jax.random.key(1),
)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    figures = {
        "import_seconds": shortest(["-c", "import vlbm"], repeats=repeats),
        "help_seconds": shortest(["-m", "vlbm", "--help"], repeats=repeats),
        "python_seconds": shortest(["-c", "pass"], repeats=repeats),
    }
    with tempfile.TemporaryDirectory() as cache:
        figures["first_seconds"] = shortest(["-c", FIRST_STEP], repeats=1, cache=cache)
        figures["second_seconds"] = shortest(["-c", FIRST_STEP], repeats=min(repeats, 3), cache=cache)
    for name, seconds in figures.items():
        say(f"{name.removesuffix('_seconds')}: {seconds:.2f} s")
    tell({"cores": cores(), **figures})


def shortest(arguments: list[str], *, repeats: int, cache: str | None = None) -> float:
    """Seconds of the fastest of several runs of Python."""
    environment = {**os.environ, **({"VLBM_CACHE": cache} if cache else {})}
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)

    def run() -> None:
        subprocess.run([sys.executable, *arguments], env=environment, check=True, stdout=subprocess.DEVNULL)

    return min(timed(run) for _ in range(repeats))


if __name__ == "__main__":
    main()
