"""Trackers: losses, validation and scores for MLflow or TensorBoard, in files beside the run."""

from __future__ import annotations

import itertools
import math
import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vlbm.errors import InputError, require
from vlbm.progress import Progress, Report

TRACKERS = ("mlflow", "tensorboard")


class Tracker:
    """Tracks nothing; the base class, closed at the end of its context."""

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(failed=kind is not None)

    def describe(self, settings: Mapping[str, Any]) -> None:
        """What the run was started with."""

    def log(self, series: str, values: Mapping[str, float], step: int) -> None:
        """Numbers of one moment; those that are not finite are left out."""
        finite = {f"{series}/{name}": float(value) for name, value in values.items() if math.isfinite(value)}
        if finite:
            self.write(finite, step)

    def write(self, values: Mapping[str, float], step: int) -> None:
        """Store numbers by name."""

    def close(self, *, failed: bool = False) -> None:
        """Nothing is tracked after this."""

    def follow(self, progress: Progress) -> Progress:
        """The same progress, whose terms are tracked too."""
        return progress


class ActiveTracker(Tracker):
    """One that stores what it is told."""

    def follow(self, progress: Progress) -> Progress:
        return TrackedProgress(progress, self)


class TensorboardTracker(ActiveTracker):
    """Event files; `tensorboard --logdir DIRECTORY` shows them."""

    def __init__(self, directory: Path):
        tensorboard = require("tensorboardX", extra="tensorboard", purpose="--track tensorboard")
        self._writer = tensorboard.SummaryWriter(logdir=str(directory))

    def describe(self, settings: Mapping[str, Any]) -> None:
        lines = "\n".join(f"    {name} = {value}" for name, value in settings.items())
        self._writer.add_text("settings", lines)

    def write(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name.replace(" ", "_"), value, step)

    def close(self, *, failed: bool = False) -> None:
        self._writer.close()


class MlflowTracker(ActiveTracker):
    """A run of MLflow: at MLFLOW_TRACKING_URI, else in files of the directory."""

    def __init__(self, directory: Path, *, name: str):
        mlflow = require("mlflow", extra="mlflow", purpose="--track mlflow")
        self._entities = mlflow.entities
        address = os.environ.get("MLFLOW_TRACKING_URI")
        if not address:
            # MLflow would rather have a database; files need no further package.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
            address = directory.absolute().as_uri()
        self._client = mlflow.MlflowClient(tracking_uri=address)
        found = self._client.get_experiment_by_name("vlbm")
        experiment = self._client.create_experiment("vlbm") if found is None else found.experiment_id
        self._run = self._client.create_run(experiment, run_name=name).info.run_id

    def describe(self, settings: Mapping[str, Any]) -> None:
        for name, value in settings.items():
            self._client.log_param(self._run, name, value)

    def write(self, values: Mapping[str, float], step: int) -> None:
        now = int(time.time() * 1000)
        metrics = [self._entities.Metric(name, value, now, step) for name, value in values.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def close(self, *, failed: bool = False) -> None:
        self._client.set_terminated(self._run, status="FAILED" if failed else "FINISHED")


def make_tracker(kind: str | None, directory: Path, *, name: str) -> Tracker:
    """The tracker of that kind; its files go into a folder of the directory."""
    if kind is None:
        return Tracker()
    if kind == "tensorboard":
        return TensorboardTracker(directory / "tensorboard")
    if kind == "mlflow":
        return MlflowTracker(directory / "mlruns", name=name)
    raise InputError(f"tracker {kind}: must be one of {', '.join(TRACKERS)}")


class TrackedProgress(Progress):
    """Hands everything on to another progress, and the terms that are reported to a tracker too.

    Terms are called after all titles on the way to their task; tasks of one name are numbered.
    """

    def __init__(self, inner: Progress, tracker: Tracker, titles: tuple[str, ...] = (), counts: Any = None):
        self.inner = inner
        self.tracker = tracker
        self.titles = titles
        self._counts = defaultdict(itertools.count) if counts is None else counts
        self._lock = threading.Lock()

    def _wrap(self, inner: Progress, *titles: str) -> TrackedProgress:
        return TrackedProgress(inner, self.tracker, (*self.titles, *titles), self._counts)

    def with_title(self, title: str) -> Progress:
        return self._wrap(self.inner.with_title(title), title)

    def of(self, owner: str) -> Progress:
        return self._wrap(self.inner.of(owner), owner)

    @contextmanager
    def shared_display(self, parts: int = 1) -> Iterator[Progress]:
        with self.inner.shared_display(parts) as shared:
            yield self._wrap(shared)

    @contextmanager
    def passing(self) -> Iterator[Progress]:
        with self.inner.passing() as shown:
            yield self._wrap(shown)

    def say(self, text: str) -> None:
        self.inner.say(text)

    @contextmanager
    def task(self, *, total: int, done: int = 0, title: str = "") -> Iterator[Report]:
        name = "/".join((*self.titles, title) if title else self.titles)
        series = f"{name}/{next(self._counts[name])}"
        with self.inner.task(total=total, done=done, title=title) as report:

            def tracked(done: int, terms: dict[str, float] | None) -> None:
                report(done, terms)
                if terms:
                    with self._lock:
                        self.tracker.log(series, terms, done)

            yield tracked
