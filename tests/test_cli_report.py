"""Pages from the command line: written by evaluate and compare, made again by report."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from systems import linear_logs
from test_cli import TINY, folder, run, weights
from vlbm.data.readers import save_npz

__all__ = ["folder"]  # a fixture

FEW = ["--episodes", 3, "--quiet"]


def sections(path: str) -> list[str]:
    text = Path(path).read_text()
    return [part.partition('"')[0] for part in text.split('<section id="')[1:]]


@pytest.mark.slow
def test_a_page_is_made_again_from_what_was_saved(folder, capsys):
    typed = ["evaluate", "logs.npz", "first.npz", "second.npz", "--set", *TINY, "--save", "kept"]
    assert run(*typed, "--report", "page.html", *FEW) == 0
    assert sections("page.html") == ["ranking", "model", "provenance"]
    kept = {path.name for path in Path("kept").iterdir()}
    assert {"model.safetensors", "model.json", "estimates.json", "evidence"} <= kept
    page = Path("page.html").read_text()
    for text in ("Where it leaves the data", "Calibration of observations", "Latent map by policy",
                 "vlbm evaluate logs.npz first.npz second.npz --set branches=2"):  # fmt: skip
        assert text in page
    for name in ("logs.npz", "first.npz", "second.npz"):
        Path(name).unlink()
    assert run("report", "kept", "--output", "again.html") == 0
    assert Path("again.html").read_text() == page
    assert run("report", "kept") == 0
    assert Path("kept/report.html").read_text() == page
    assert "kept/report.html" in capsys.readouterr().out


@pytest.mark.slow
def test_a_fitted_model_makes_a_page_without_data_and_a_fuller_one_with_them(folder, capsys):
    assert run("fit", "logs.npz", "--save", "model", "--set", *TINY, "--quiet") == 0
    assert run("evaluate", "first.npz", "--model", "model", "--report", "bare.html", *FEW) == 0
    assert run("evaluate", "logs.npz", "first.npz", "--model", "model", "--report", "full.html", *FEW) == 0
    assert "Calibration" not in Path("bare.html").read_text()
    assert "Calibration" in Path("full.html").read_text()
    save_npz(linear_logs(observations=4), "other.npz")
    assert run("evaluate", "other.npz", "first.npz", "--model", "model", "--report", "no.html", *FEW) == 2
    assert "other.npz: observation size is 4, the model's is 3" in capsys.readouterr().err


def test_compare_writes_a_page_of_all_methods_and_resumes_with_its_evidence(folder):
    small = [
        "wpdis.clone_steps=5",
        *(f"ff.{part}=2" for part in ("steps", "units", "members", "validate_every")),
    ]
    policies = ["first.npz", "second.npz"]
    typed = ["compare", "logs.npz", *policies, "--methods", "wpdis,ff", "--actions", "sample",
             "--set", *small, "--save", "kept", "--report", "page.html", "--quiet"]  # fmt: skip
    assert run(*typed) == 0
    assert sections("page.html") == ["ranking", "methods", "model", "provenance"]
    first = Path("page.html").read_text()
    assert "effective sample size" in first
    before = {path: path.stat().st_mtime_ns for path in Path("kept").glob("*.safetensors")}
    assert len(before) == 4  # estimates and evidence of two methods
    assert run(*typed, "--resume") == 0
    assert {path: path.stat().st_mtime_ns for path in Path("kept").glob("*.safetensors")} == before
    assert sections("page.html") == ["ranking", "methods", "model", "provenance"]
    assert run("report", "kept", "--output", "again.html") == 0
    assert Path("again.html").read_text() == Path("page.html").read_text()


def test_one_policy_can_be_compared(folder):
    np.savez("only.npz", **weights(seed=3))
    assert run("compare", "logs.npz", "only.npz", "--methods", "wpdis,wis", "--actions", "sample", "--set",
               "wpdis.clone_steps=5", "wis.clone_steps=5", "--report", "page.html", "--json", "out.json",
               "--quiet") == 0  # fmt: skip
    assert sections("page.html") == ["ranking", "methods", "provenance"]
    assert json.loads(Path("out.json").read_text())["agreement"] == {
        "wpdis": {"wpdis": None, "wis": None},
        "wis": {"wpdis": None, "wis": None},
    }


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "nowhere: holds no saved run"),
        (["kept", "--output", "."], "is a directory"),
    ],
)
def test_what_cannot_be_made_is_one_clear_error(arguments, words, folder, capsys):
    assert run("report", *arguments) == 2
    message = capsys.readouterr().err
    assert words in message
    assert message.count("\n") == 1
