"""Errors on the command line name what was typed."""

from __future__ import annotations

import pytest

from systems import linear_logs
from test_cli import run
from vlbm.cli.wording import name_options
from vlbm.data.readers import save_npz


@pytest.mark.parametrize(
    ("said", "typed"),
    [
        ("logs.npz: n_actions=0 leaves no action", "logs.npz: --n-actions 0 leaves no action"),
        ("one id for each step; leave out n_actions", "one id for each step; leave out --n-actions"),
        ("discount 1.5: must be above 0", "--discount 1.5: must be above 0"),
        ("horizon 0: must be at least 1", "--horizon 0: must be at least 1"),
        ("horizon inf: vlbm cannot answer", "--horizon inf: vlbm cannot answer"),
        ("setting steps=0: must be at least 1", "--set steps=0: must be at least 1"),
        ("logs.npz: setting folds=9: there are only 3", "logs.npz: --set folds=9: there are only 3"),
        ("unknown setting 'stesp=1'; did you mean", "unknown --set 'stesp=1'; did you mean"),
        (
            "run: continue it with resume=True, or give another",
            "run: continue it with --resume, replace it with --overwrite, or give another",
        ),
        ("load with download=True to fetch it", "load with --download to fetch it"),
        ("Say which with reward='x'", "Say which with --column reward='x'"),
        ("episodes differ in length", "episodes differ in length"),
        ("logs.csv: the horizon was cut", "logs.csv: the horizon was cut"),
    ],
)
def test_arguments_are_named_as_options(said, typed):
    assert name_options(said) == typed


def test_an_error_from_below_names_the_option(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    save_npz(linear_logs(), "logs.npz")
    assert run("inspect", "logs.npz", "--n-actions", 0) == 2
    assert "logs.npz: --n-actions 0 leaves no action" in capsys.readouterr().err
