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

# A fit of the default preset on data of HalfCheetah's sizes; its process ends with the first training step.
FIRST_STEP = """
import os
from contextlib import contextmanager
from measure import smooth_logs
from vlbm import VLBM
from vlbm.progress import Progress

class UntilFirst(Progress):
    @contextmanager
    def task(self, **given):
        yield lambda done, terms: os._exit(0)

VLBM().fit(smooth_logs(episodes=10, length=100), progress=UntilFirst())
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
