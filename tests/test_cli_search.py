"""vlbm fit --search, as it is typed."""

from __future__ import annotations

import json

import pytest

from test_cli import folder, run
from vlbm.estimators.registry import load_model
from vlbm.experiments import select

__all__ = ["folder"]
SMALL = ("steps=4", "validate_every=2", "units=4", "members=2")
SEARCH = ("fit", "logs.npz", "--method", "ff", "--save", "run", "--set", *SMALL, "--search", "grid", "--grid",
          "learning_rate=1e-9,1e-2", "units=4", "--quiet")  # fmt: skip


def test_the_best_settings_are_fitted_and_saved_and_a_search_goes_on(folder, capsys, monkeypatch):
    scored: list[float] = []

    def score(estimator, episodes, seed):
        scored.append(estimator.learning_rate)
        if len(scored) == 2:
            raise KeyboardInterrupt
        return 1e-6 if estimator.learning_rate == 1e-2 else 0.5

    monkeypatch.setitem(select.SCORES, "open-loop", score)
    assert run(*SEARCH) != 0
    assert len(json.loads((folder / "run" / "search.json").read_text())["candidates"]) == 1
    assert run(*SEARCH) == 2
    assert "holds a search already (search.json); add --resume" in capsys.readouterr().err
    assert run(*SEARCH, "--resume") == 0
    assert scored == [1e-9, 1e-2, 1e-2]
    shown = capsys.readouterr().out
    assert "1e-06" in shown
    assert "chosen: learning_rate=0.01 units=4" in shown
    settings = load_model(folder / "run").settings
    assert (settings.learning_rate, settings.units) == (1e-2, (4,))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--grid", "units=4,8"], "--grid: is what --search chooses from"),
        (["--search", "grid", "--grid", "unit=4,8"], "did you mean 'units'"),
        (["--search", "halving", "--grid", "units"], "--grid units: expected paper, or KEY=V1,V2"),
    ],
)
def test_searches_that_cannot_be_made_are_one_clear_error(folder, arguments, words, capsys):
    assert run("fit", "logs.npz", "--save", "run", *arguments, "--quiet") == 2
    message = capsys.readouterr().err
    assert words in message
    assert message.count("\n") == 1
