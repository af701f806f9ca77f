"""Trackers: what was reported while training and of every cell is in their files."""

from __future__ import annotations

import pytest

from test_cli import folder, run
from vlbm.errors import InputError
from vlbm.experiments.rows import read_rows
from vlbm.progress import silent
from vlbm.tracking import Tracker, make_tracker

__all__ = ["folder"]
CHEAP = ("--methods", "ff", "--set", "ff.steps=4", "ff.units=4", "ff.members=2", "ff.validate_every=2")


class Diary(Tracker):
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.written: list[tuple[dict[str, float], int]] = []

    def write(self, values, step):
        self.written.append((dict(values), step))


def test_terms_are_called_after_the_titles_above_them_and_numbered():
    from vlbm.tracking import TrackedProgress

    diary = Diary()
    with TrackedProgress(silent, diary).shared_display(2) as progress:
        for model in (0, 1):
            with progress.of("ff seed 0").with_title("training").task(total=2) as report:
                report(1, {"loss": 1.0 + model})
                report(2, {"loss": float("nan"), "validation": 3.0})
                report(2, None)
    assert diary.written == [
        ({"ff seed 0/training/0/loss": 1.0}, 1),
        ({"ff seed 0/training/0/validation": 3.0}, 2),
        ({"ff seed 0/training/1/loss": 2.0}, 1),
        ({"ff seed 0/training/1/validation": 3.0}, 2),
    ]


def test_a_tracker_that_is_not_known_is_refused(tmp_path):
    with pytest.raises(InputError, match="tracker paper: must be one of mlflow, tensorboard"):
        make_tracker("paper", tmp_path, name="run")
    assert make_tracker(None, tmp_path, name="run").follow(silent) is silent


def read_tensorboard(place) -> dict[str, list[float]]:
    """The numbers of an event file, whose records are a length, its checksum, an event and its checksum."""
    from tensorboardX.proto.event_pb2 import Event

    (file,) = place.glob("events*")
    content, found = file.read_bytes(), {}
    while content:
        size = int.from_bytes(content[:8], "little")
        event = Event.FromString(content[12 : 12 + size])
        content = content[16 + size :]
        for value in event.summary.value:
            if value.WhichOneof("value") == "simple_value":
                found.setdefault(value.tag, []).append((event.step, value.simple_value))
    return found


def read_mlflow(address) -> tuple[dict[str, float], dict[str, str], str]:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=address)
    (made,) = client.search_runs([client.get_experiment_by_name("vlbm").experiment_id])
    return made.data.metrics, made.data.params, made.info.status


def test_a_fit_is_tracked_by_tensorboard(folder):
    pytest.importorskip("tensorboardX")
    code = run("fit", "logs.npz", "--method", "ff", "--save", "run", "--set", "steps=4", "validate_every=2",
               "units=4", "members=2", "--track", "tensorboard", "--quiet")  # fmt: skip
    assert code == 0
    found = read_tensorboard(folder / "run" / "tensorboard")
    validated = found["training/0/validation"]
    assert [step for step, _ in validated] == [2, 4]
    assert found["training/0/loss"][-1][0] == 4


def test_a_benchmark_is_tracked_by_mlflow(tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    place = tmp_path / "results"
    code = run("benchmark", "run", "pendulum", *CHEAP, "--seeds", 1, "--out", place, "--track", "mlflow",
               "--quiet")  # fmt: skip
    assert code == 0
    metrics, settings, status = read_mlflow((place / "mlruns").as_uri())
    (row,) = read_rows(place)
    assert metrics["scores/pendulum/ff/absolute_error"] == pytest.approx(row.scores["absolute_error"])
    assert "pendulum ff seed 0/training/0/validation" in metrics
    assert (settings["methods"], status) == ("ff", "FINISHED")


def test_mlflow_goes_where_its_own_variable_says(folder, monkeypatch):
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (folder / "elsewhere").as_uri())
    tracker = make_tracker("mlflow", folder / "run", name="run")
    with tracker:
        tracker.log("series", {"loss": 1.0}, 3)
    assert not (folder / "run").exists()
    assert read_mlflow((folder / "elsewhere").as_uri())[0] == {"series/loss": 1.0}
