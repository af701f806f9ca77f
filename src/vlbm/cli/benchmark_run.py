"""vlbm benchmark run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vlbm.cli.common import (
    Download,
    LikeD4rl,
    MethodSettings,
    Preset,
    Quiet,
    Seed,
    Steps,
    TaskData,
    TaskPolicies,
    check_policies,
    make_console,
    make_estimators,
    make_progress,
    print_notes,
)
from vlbm.cli.tracking import Track
from vlbm.errors import InputError

if TYPE_CHECKING:
    from vlbm.experiments.executors.base import Executor
    from vlbm.experiments.plan import Cell, Question, Questions
    from vlbm.experiments.row_store import KnownTask, RowStore
    from vlbm.experiments.rows import Row
    from vlbm.progress import Progress
    from vlbm.suites.base import Task

INTERRUPTED, NOTHING_FINISHED = 130, 3  # exit codes


class Where(StrEnum):
    local = "local"
    ray = "ray"


def run(
    context: typer.Context,
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="SUITE|TASK...",
            help="Tasks, suites (gym, dope) or patterns such as 'hopper-*'; `vlbm suites` lists them.",
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="The benchmark's directory; results go to DIR/rows.")
    ],
    methods: Annotated[
        str, typer.Option(metavar="A,B,...", help="Which estimators; `vlbm methods` lists them.")
    ] = "vlbm,ff,ar,fqe",
    preset: Preset = "default",
    settings: MethodSettings = [],  # noqa: B006
    seeds: Annotated[int, typer.Option(help="Run every method so many times, from --seed on.")] = 3,
    seed: Seed = 0,
    executor: Annotated[
        Where,
        typer.Option(
            help="Where cells are computed: on this machine, or on a Ray cluster (at RAY_ADDRESS; needs the "
            "extra `ray`)."
        ),
    ] = Where.local,
    workers: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="So many cells at once, each with its share of the cores. Default: one with all cores, on "
            "Ray one for every node.",
        ),
    ] = None,
    steps: Steps = None,
    data: TaskData = None,
    policies: TaskPolicies = None,
    download: Download = False,
    like_d4rl: LikeD4rl = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Run cells again that have failed.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show which cells there are and which are done; run none.")
    ] = False,
    track: Track = None,
    quiet: Quiet = False,
) -> None:
    """Run every method with every seed on every task, and store a row for each as it finishes.

    Stopped by Ctrl-C, `kill -9` or a power cut, **the same command goes on** where it was: finished cells are
    not run again, and half-trained models continue from their checkpoints. A cell that fails is recorded with
    its reason. More methods, seeds, settings or tasks can be added to the same directory at any time.

    Example: `vlbm benchmark run pendulum --methods ff,fqe --seeds 3 --out results`, then
    `vlbm benchmark report results`
    """
    if seeds < 1:
        raise InputError(f"--seeds {seeds}: must be at least 1")
    from vlbm.experiments.plan import plan_cells
    from vlbm.experiments.row_store import RowStore
    from vlbm.tracking import make_tracker

    tasks = find_tasks(names)
    estimators, progress = make_estimators(methods, settings, preset), make_progress(quiet)
    plain = make_estimators(",".join(estimators), [], preset)
    options: dict[str, Any] = {
        "steps": steps, "data": data, "policies": policies, "download": download, "like_d4rl": like_d4rl
    }  # fmt: skip
    chosen = range(seed, seed + seeds)
    loader = Loader(options, progress)

    def plan(labels: Iterable[str]) -> list[Cell]:
        return plan_cells(labels, estimators, chosen, preset=preset, presets=plain, latents=True)

    if dry_run:
        print_plan(plan(map(loader.guess_label, tasks)), RowStore(out, {}))
        return
    where = make_executor(executor, workers)
    from vlbm.directories import claim_directory

    context.with_resource(claim_directory(out, resume=True))
    tracker = context.with_resource(make_tracker(track, out, name=f"benchmark {out.name}"))
    tracker.describe({"tasks": " ".join(tasks), "methods": methods, "preset": preset, "seeds": seeds})
    known = {label: fact for label, fact in map(loader.describe, tasks)}
    print_notes(collect_notes(estimators, [loader(label) for label in known][:1]))
    cells = plan(known)
    store = RowStore(out, known, retry_failed=retry_failed)
    rows, interrupted = [], False
    try:
        for row in follow(cells, loader, store, where, workers or 1, tracker.follow(progress)):
            rows.append(row)
            if row.scores is not None:
                tracker.log(f"scores/{row.task}/{row.method}", row.scores, row.seed)
    except KeyboardInterrupt:
        interrupted = True
    store.tidy()
    print_end(out, cells, rows, interrupted=interrupted)
    if interrupted:
        raise typer.Exit(INTERRUPTED)
    if all(row.failed is not None for row in rows):
        raise typer.Exit(NOTHING_FINISHED)


def find_tasks(names: Sequence[str]) -> list[str]:
    """The tasks that are meant by their names, their suites' names, or patterns."""
    from fnmatch import fnmatchcase

    from vlbm.suites import check_name, find_entry, task_names

    every = task_names()
    found: list[str] = []
    for name in names:
        if name in every:
            found.append(name)
            continue
        chosen = [task for task in every if fnmatchcase(task, name) or find_entry(task).suite == name]
        if not chosen:
            check_name(name)
        found += chosen
    return list(dict.fromkeys(found))


class Loader:
    """Questions by the name that rows give their task; the two latest are held."""

    def __init__(self, options: dict[str, Any], progress: Progress):
        self.options = options
        self.progress = progress
        self.names: dict[str, str] = {}  # of tasks by label
        self._load = lru_cache(maxsize=2)(self._load_task)

    def __call__(self, label: str) -> Question:
        return self._load(self.names.get(label, label))[1]

    def describe(self, name: str) -> tuple[str, KnownTask]:
        """A task's label, and what rows say of it."""
        from vlbm.experiments.row_store import KnownTask
        from vlbm.suites import find_entry

        (task, question), entry = self._load(name), find_entry(name)
        self.names[task.label] = name
        known = KnownTask.of(question, suite=entry.suite, environment=entry.environment, truth=task.truth)
        return task.label, known

    def guess_label(self, name: str) -> str:
        """The label of a task that is not loaded."""
        from vlbm.experiments.rows import REGENERATED

        return f"{name}{REGENERATED}" if self.options["like_d4rl"] else name

    def _load_task(self, name: str) -> tuple[Task, Question]:
        from vlbm.estimand import Estimand
        from vlbm.experiments.plan import Question
        from vlbm.suites import load_task

        task = load_task(name, progress=self.progress, **self.options)
        policies = check_policies(task.episodes, dict(task.policies))
        estimand = Estimand(task.discount, task.horizon, task.actions)
        return task, Question(task.episodes, policies, estimand)


def make_executor(executor: Where, workers: int | None) -> Executor:
    if workers is not None and workers < 1:
        raise InputError(f"--workers {workers}: must be at least 1")
    if executor is Where.ray:
        from vlbm.experiments.executors.ray import RayExecutor

        return RayExecutor(workers)
    from vlbm.experiments.executors.local import LocalExecutor

    return LocalExecutor(workers or 1)


def collect_notes(estimators: dict[str, Any], questions: Iterable[Question]) -> dict[str, list[str]]:
    """Who cannot answer, or answers for something else, said before anything is trained."""
    from vlbm.experiments.compare import find_notes, find_unable

    notes: dict[str, list[str]] = {}
    for question in questions:
        asked = question.episodes, question.policies, question.estimand
        unable = find_unable(estimators, *asked)
        able = {method: one for method, one in estimators.items() if method not in unable}
        notes |= {method: [f"will fail: {error}"] for method, error in unable.items()}
        notes |= find_notes(able, *asked)
    return notes


def follow(
    cells: Sequence[Cell],
    questions: Questions,
    store: RowStore,
    executor: Executor,
    at_once: int,
    progress: Progress,
) -> Iterable[Row]:
    """Run the cells; a line for each that finishes, and a bar for all of them."""
    from vlbm.experiments.run import run_cells
    from vlbm.experiments.time_left import TimeLeft

    left = TimeLeft(cells, at_once=at_once)
    stored = sum(store.load(cell) is not None for cell in cells)
    with (
        progress.shared_display() as display,
        display.task(total=len(cells), done=stored, title="cells") as report,
    ):
        found = run_cells(cells, questions, store, executor, progress=display)
        for number, (_, row) in enumerate(found, start=1):
            left.finish(row)
            if number > stored:
                report(number, None)
                display.say(describe_row(row, f"{number}/{len(cells)}", left.seconds))
            yield row


def describe_row(row: Row, place: str, seconds_left: float | None) -> str:
    """One line for a cell that has finished."""
    from vlbm.estimand import ACTION_WORDS
    from vlbm.experiments.time_left import describe_seconds

    parts = [f"{place:>7}", row.task, row.method, f"seed {row.seed}"]
    if row.failed is not None:
        parts.append(f"failed: {row.failed}")
    elif row.scores is None:
        parts.append(f"not scored: answers for {ACTION_WORDS[row.estimand.actions]} actions")
    else:
        parts += [
            f"rank {row.scores['rank_correlation']:.2f}",
            f"regret {row.scores['regret']:.2f}",
            f"MAE {row.scores['absolute_error']:.4g}",
        ]
    taken = [value for value in row.seconds.values() if not math.isnan(value)]
    parts += [describe_seconds(sum(taken))] if taken else []
    if seconds_left:
        parts.append(f"about {describe_seconds(seconds_left)} left")
    return "  ".join(filter(None, parts))


def print_plan(cells: Sequence[Cell], store: RowStore) -> None:
    """All cells and what is known of them, without loading any data."""
    from rich import box
    from rich.table import Table

    from vlbm.experiments.grids import describe_settings

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("task", "method", "preset", "settings", "seed", "state"):
        table.add_column(column, overflow="fold")
    states = []
    for cell in cells:
        row = store.find(cell)
        states.append("to do" if row is None else "done" if row.failed is None else "failed")
        changes = describe_settings(cell.changes)
        table.add_row(cell.task, cell.method, cell.preset, changes, str(cell.seed), states[-1])
    console = make_console()
    console.print(table)
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    console.print(f"{len(cells)} cell{'' if len(cells) == 1 else 's'}: {counts}", highlight=False)


def print_end(out: Path, cells: Sequence[Cell], rows: Sequence[Row], *, interrupted: bool) -> None:
    from vlbm.experiments.overview import make_overview
    from vlbm.experiments.rows import FOLDER, read_rows
    from vlbm.report.benchmarks import print_overview

    console = make_console()
    if any((out / FOLDER).glob("*/*.json")):
        stored = read_rows(out)
        for suite in dict.fromkeys(row.suite for row in stored):
            print_overview(make_overview(stored, suite), console)
    failed = [row for row in rows if row.failed is not None]
    text = f"{len(rows)} of {len(cells)} done"
    if failed:
        text += f", {len(failed)} of them failed; --retry-failed runs these again"
    console.print(text, highlight=False)
    if interrupted:
        console.print("Interrupted; the same command goes on.", highlight=False)
    elif len(rows) > len(failed):
        console.print(f"Tables, figures and a page: vlbm benchmark report {out}", highlight=False)
