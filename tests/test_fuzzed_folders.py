"""Mutants of saved models and runs: each is read as a whole, or refused with one clear error."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzz_loaders import take_from_headers
from fuzzing import count, failures, fuzz
from pages import made_comparison
from systems import linear_logs
from vlbm.estimators.world_models.feedforward import FeedForward
from vlbm.estimators.world_models.vlbm import VLBM
from vlbm.report.saved import save_run

FEW, MANY = 25, 1000


def model(path: Path) -> str:
    tiny = {"branches": 2, "latents": 2, "units": 3, "head_units": (2,), "g_units": (2,), "window": 3}
    VLBM(**tiny, steps=2, validate_every=1, batch=2, models=2).fit(linear_logs()).save(path)
    return "open_model"


def ensemble(path: Path) -> str:
    settings = FeedForward(members=2, units=(3,), steps=2, validate_every=1, batch=2)
    settings.fit(linear_logs(n_actions=3)).save(path)
    return "open_model"


def run(path: Path) -> str:
    save_run(made_comparison(points=20, horizon=20), path)
    return "show_run"


KINDS = {"model": model, "ensemble": ensemble, "run": run}


def check_mutants(folder: Path, name: str, numbers: range) -> None:
    loader = KINDS[name](folder / name)
    take_from_headers(folder / name)
    outcomes = fuzz(f"fuzz_loaders:{loader}", folder / name, numbers)
    print(name, count(outcomes))
    assert failures(outcomes) == []
    assert {"loaded", "refused"} <= count(outcomes).keys()


@pytest.mark.parametrize("name", ["model", "run"])
def test_a_changed_folder_is_read_whole_or_refused(tmp_path, name):
    check_mutants(tmp_path, name, range(FEW))


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_many_changed_folders_are_read_whole_or_refused(tmp_path, name):
    check_mutants(tmp_path, name, range(FEW, FEW + MANY))
