"""Run every benchmark, each as its own process, and show what they found beside what they must reach.

Every benchmark's figures are written as soon as it is done, so Ctrl-C loses nothing but the one at work;
`--show` prints the table of what is there without running anything.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from goals import BENCHMARKS, Benchmark, Goal, figure_of, names
from rich.console import Console
from rich.table import Table
from telling import cores, say, told

from vlbm.storage import write_text

PLACE = Path(__file__).resolve().parent
LIMIT = 1800  # seconds for one benchmark


def main() -> None:
    parser = argparse.ArgumentParser(prog="python benchmarks", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help=f"some of them: {','.join(names())}")
    parser.add_argument("--cores", default="1,2", help="core counts to run with (default: 1,2)")
    parser.add_argument("--output", type=Path, default=PLACE / "results", help="folder for the figures")
    parser.add_argument(
        "--into", type=Path, help="a summary of earlier runs to put what was measured now into"
    )
    parser.add_argument("--show", action="store_true", help="run nothing, show what is there")
    arguments = parser.parse_args()
    chosen = [name for name in arguments.only.split(",") if name] or names()
    unknown = sorted(set(chosen) - set(names()))
    if unknown:
        parser.error(f"no benchmark is called {', '.join(unknown)}; there are {', '.join(names())}")
    counts = [int(count) for count in arguments.cores.split(",")]
    selected = [each for each in BENCHMARKS if each.name in chosen and each.cores in counts]
    try:
        for benchmark in () if arguments.show else selected:
            figures = run(benchmark)
            write_text(place_of(arguments.output, benchmark), json.dumps(figures, indent=2) + "\n")
    except KeyboardInterrupt:
        say("\nstopped; what was measured before is shown and kept")
    rows = [row for benchmark in selected for row in rows_of(benchmark, arguments.output)]
    show(rows)
    write_summary(arguments.output / "summary.json", rows)
    if arguments.into is not None:
        earlier = json.loads(arguments.into.read_text())["rows"] if arguments.into.is_file() else []
        write_summary(arguments.into, merged(earlier, rows))


def write_summary(path: Path, rows: list[dict[str, Any]]) -> None:
    write_text(path, json.dumps({"machine": machine(), "rows": rows}, indent=2) + "\n")


def merged(earlier: list[dict[str, Any]], now: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of earlier runs, those of benchmarks that were measured now replaced; each says when it was."""
    measured: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in now:
        if row["value"] is not None:
            measured.setdefault((row["benchmark"], row["cores"]), []).append(row)
    rows = []
    for row in earlier:
        found = measured.get((row["benchmark"], row["cores"]))
        # All of a benchmark's new rows stand where its first old one stood.
        rows += [row] if found is None else found
        if found is not None:
            measured[row["benchmark"], row["cores"]] = []
    return rows + [row for found in measured.values() for row in found]


def run(benchmark: Benchmark, *, place: Path = PLACE) -> dict[str, Any]:
    """What a benchmark told, or `failed` with the reason."""
    say(f"\n== {benchmark.name}, {benchmark.cores} core{'s' * (benchmark.cores > 1)}")
    script, available = place / benchmark.script, sorted(os.sched_getaffinity(0))
    if not script.is_file():
        return {"failed": f"there is no {benchmark.script}"}
    if benchmark.cores > len(available):
        return {"failed": f"needs {benchmark.cores} cores, and {len(available)} may be used"}
    threads = str(benchmark.cores)
    environment = {**os.environ, "OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads}
    environment |= benchmark.environment
    began, load = time.monotonic(), os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        own = Path(folder) / "rows.json"
        options = () if benchmark.goals else ("--json", str(own))
        command = [sys.executable, str(script), *benchmark.arguments, *options]
        figures = _outcome(command, environment, available[: benchmark.cores])
        if own.is_file():
            figures["rows"] = json.loads(own.read_text())
            figures.pop("failed", None)
    return {**figures, "took": time.monotonic() - began, "load_before": load, "when": now()}


def _outcome(command: list[str], environment: dict[str, str], on: list[int]) -> dict[str, Any]:
    process = subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, on),
    )
    try:
        output, _ = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        return {"failed": f"not done after {LIMIT} s"}
    except KeyboardInterrupt:
        process.terminate()
        raise
    if process.returncode:
        return {"failed": f"ended with code {process.returncode}; its output says why"}
    try:
        return told(output)
    except ValueError as error:
        return {"failed": str(error)}


def rows_of(benchmark: Benchmark, folder: Path) -> list[dict[str, Any]]:
    path = place_of(folder, benchmark)
    figures: dict[str, Any] = {"failed": "not measured yet"}
    if path.is_file():
        figures = json.loads(path.read_text())
    common = {"benchmark": benchmark.name, "cores": benchmark.cores, "when": figures.get("when")}
    if benchmark.goals:
        return [{**common, **row_of(goal, figures)} for goal in benchmark.goals]
    if "rows" not in figures:
        return [{**common, **row_of(Goal("", benchmark.script), figures)}]
    return [
        {**common, **row, "must": "" if row["target"] == "none" else row["target"], "why_not": None}
        for row in figures["rows"]
    ]


def row_of(goal: Goal, figures: dict[str, Any]) -> dict[str, Any]:
    value = figures.get("failed") or figure_of(figures, goal)
    number = None if isinstance(value, str) else value
    return {
        "name": goal.meaning,
        "value": number,
        "unit": goal.unit,
        "must": goal.must,
        "met": None if number is None else goal.met(number),
        "why_not": value if isinstance(value, str) else None,
    }


def show(rows: list[dict[str, Any]]) -> None:
    table = Table(title="Benchmarks")
    for title in ("benchmark", "cores", "what", "figure", "must be", "met"):
        table.add_column(title, justify="right" if title in ("cores", "figure", "must be") else "left")
    for row in rows:
        figure = row["why_not"] or f"{row['value']:.3g} {row['unit']}".strip()
        met = {True: "yes", False: "[bold]no[/bold]", None: "?" if row["must"] else ""}[row["met"]]
        table.add_row(row["benchmark"], str(row["cores"]), row["name"], figure, row["must"], met)
    Console(width=None if sys.stdout.isatty() else 140).print(table)


def machine() -> dict[str, Any]:
    model = "unknown"
    information = Path("/proc/cpuinfo")
    if information.is_file():
        lines = [line for line in information.read_text().splitlines() if line.startswith("model name")]
        model = lines[0].partition(":")[2].strip() if lines else model
    return {"processor": model, "cores": cores(), "python": platform.python_version(), "when": now()}


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def place_of(folder: Path, benchmark: Benchmark) -> Path:
    return folder / f"{benchmark.name}-{benchmark.cores}.json"
