"""Memory that training takes: whatever the length of episodes, and whatever the size of mapped data.

    python benchmarks/memory.py --json memory.json

Every figure comes from a process of its own, as the most anonymous memory (RssAnon) that it held while it
trained, looked at every few milliseconds. Pages of mapped files are not counted: the operating system drops
them whenever it needs room. Settings are the default ones, but for the number of gradient steps.

Equal numbers of steps in episodes of 1,000, 10,000 and 20,000 steps must take the same memory, and ten
million steps in mapped files (a gigabyte, written here in pieces) no more than a hundredth as many. The
paper's preset, which trains on whole episodes, has a bound of its own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from telling import tell_rows

STEPS = 400_000  # of data that are loaded
LENGTHS = (1_000, 10_000, 20_000)
MAPPED = (100_000, 10_000_000)
PART = 100_000  # steps written at once
TOLERANCE = 0.10
PAPER_EPISODES, PAPER_UPDATES = 64, 2  # of 1,000 steps; an iteration takes seconds
PAPER_LIMIT = 4096  # megabytes


def anonymous() -> float:
    """Megabytes of this process that are in no file."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1024
    raise OSError("/proc/self/status does not say RssAnon")


class Watch(threading.Thread):
    """Remembers the most memory seen."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most, self.over = 0.0, threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.005):
            self.most = max(self.most, anonymous())


def write(path: Path, steps: int) -> None:
    """Steps of a random walk with HalfCheetah's sizes, as a packed folder."""
    from measure import smooth_logs

    from vlbm.data.readers import save_packed

    save_packed(
        (
            smooth_logs(episodes=PART // LENGTHS[0], length=LENGTHS[0], seed=part)
            for part in range(steps // PART)
        ),
        path,
    )


def train(arguments: argparse.Namespace) -> dict[str, Any]:
    """Train in this process, and say what it took."""
    from measure import smooth_logs

    from vlbm.data.readers import load
    from vlbm.estimators.world_models.presets import PAPER
    from vlbm.estimators.world_models.vlbm import VLBM
    from vlbm.progress import Progress, Report

    settings = VLBM(**PAPER) if arguments.paper else VLBM()
    settings = replace(settings, models=1, keep=None, warm_up=1)
    settings = replace(settings, steps=arguments.updates, validate_every=arguments.updates)
    before = anonymous()
    watch = Watch()
    watch.start()
    if arguments.mapped:
        episodes = load(arguments.mapped)
    elif arguments.paper:
        episodes = smooth_logs(episodes=PAPER_EPISODES, length=arguments.paper)
    else:
        episodes = smooth_logs(episodes=STEPS // arguments.length, length=arguments.length)
    loaded = anonymous()
    watch.most = 0.0  # of training, not of making the data
    began = time.perf_counter()
    loop: list[float] = []  # the most before the first stretch of steps, which compiles, was over

    class FromTheSecondStretch(Progress):
        @contextmanager
        def task(self, *, total: int, done: int = 0, title: str = "") -> Iterator[Report]:
            def report(done: int, terms: dict[str, float] | None) -> None:
                if not loop:
                    loop.append(watch.most)
                    watch.most = 0.0

            yield report

    evaluator = settings.fit(episodes, progress=FromTheSecondStretch())
    seconds = time.perf_counter() - began
    watch.over.set()
    watch.join()
    data = sum(np.asarray(part).nbytes for part in (episodes.observation, episodes.action, episodes.reward))
    return {
        "peak": max(watch.most, *loop),
        "loop": watch.most,
        "data": data / 2**20,
        "loaded": loaded - before,
        "seconds": seconds,
        "training_seconds": evaluator.histories[0].seconds,
    }


def in_a_process(*arguments: str) -> dict[str, Any]:
    """The second time round: the first one compiles, which takes memory of its own."""
    command = [sys.executable, __file__, *arguments]
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{' '.join(command)}\n{done.stderr}")
    figures = json.loads(done.stdout.splitlines()[-1])
    print(f"{' '.join(arguments)}: {figures['peak']:.0f} MB", file=sys.stderr, flush=True)
    return figures


def compared(name: str, found: dict[int, dict[str, Any]], what: str) -> dict[str, Any]:
    """A row: the largest of all over the first, of the whole fit or of its steps alone, whichever is more."""
    ratio = max(
        max(figures[part] for figures in found.values()) / next(iter(found.values()))[part]
        for part in ("peak", "loop")
    )
    detail = ", ".join(
        f"{size:,} {what}: {figures['peak']:.0f} MB ({figures['loop']:.0f} MB once compiled)"
        for size, figures in found.items()
    )
    return {
        "name": name,
        "value": ratio,
        "unit": "times",
        "target": f"< {1 + TOLERANCE:g}",
        "met": ratio < 1 + TOLERANCE,
        "detail": detail,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--updates", type=int, default=50, help="gradient steps (default: 50)")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--length", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--mapped", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--paper", type=int, help=argparse.SUPPRESS)  # steps of an episode
    arguments = parser.parse_args()
    if arguments.length or arguments.mapped or arguments.paper:
        print(json.dumps(train(arguments)))
        return

    updates = ("--updates", str(arguments.updates))
    lengths = {length: in_a_process("--length", str(length), *updates) for length in LENGTHS}
    rows = [compared("peak memory of training by episode length", lengths, "steps per episode")]
    mapped: dict[int, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for steps in MAPPED:
            place = Path(folder) / str(steps)
            write(place, steps)
            mapped[steps] = in_a_process("--mapped", str(place), *updates)
    rows.append(compared("peak memory of training by size of mapped data", mapped, "steps"))
    fit, data = mapped[MAPPED[-1]], mapped[MAPPED[-1]]["data"]
    rows[-1]["detail"] += f"; {data:,.0f} MB of data, fitted in {fit['seconds']:.0f} s"
    rows.append(of_the_paper(in_a_process("--paper", "1000", "--updates", str(PAPER_UPDATES))))
    tell_rows(rows, arguments.json)


def of_the_paper(figures: dict[str, Any]) -> dict[str, Any]:
    """A row: what whole episodes of the paper's sizes take."""
    return {
        "name": "peak memory of training on whole episodes at the paper's sizes",
        "value": figures["peak"],
        "unit": "MB",
        "target": f"< {PAPER_LIMIT}",
        "met": figures["peak"] < PAPER_LIMIT,
        "detail": f"{PAPER_EPISODES} episodes of 1,000 steps in a batch, 10 branches; "
        f"{figures['loop']:.0f} MB once compiled",
    }


if __name__ == "__main__":
    main()
