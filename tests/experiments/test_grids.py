"""Grids as they are typed."""

from __future__ import annotations

import pytest

from vlbm.errors import InputError
from vlbm.estimators.importance import WPDIS
from vlbm.estimators.world_models.vlbm import VLBM
from vlbm.experiments.grids import PAPER_GRID, parse_grid


def test_every_combination_is_a_candidate_with_the_types_of_the_settings():
    found = parse_grid(VLBM, ["learning_rate=1e-3,3e-4", "units=64,128"])
    assert found == (
        {"learning_rate": 1e-3, "units": 64},
        {"learning_rate": 1e-3, "units": 128},
        {"learning_rate": 3e-4, "units": 64},
        {"learning_rate": 3e-4, "units": 128},
    )
    assert parse_grid(VLBM, ["paper"]) == PAPER_GRID


def test_layers_in_parentheses_are_one_value():
    found = parse_grid(VLBM, ["head_units=64,(32,32),(8,)"])
    assert [settings["head_units"] for settings in found] == [(64,), (32, 32), (8,)]


@pytest.mark.parametrize(
    ("kind", "texts", "words"),
    [
        (VLBM, ["learning_rate"], "expected paper, or KEY=V1,V2"),
        (VLBM, ["learning_rat=1"], "did you mean 'learning_rate'"),
        (VLBM, ["units=a"], "expected a whole number"),
        (VLBM, ["steps=1,2"], "how long candidates are trained"),
        (VLBM, ["units=1", "units=2"], "named twice"),
        (VLBM, ["paper", "units=2"], "a grid of its own"),
        (WPDIS, ["paper"], "unknown setting 'learning_rate'"),
    ],
)
def test_what_is_no_grid_is_one_clear_error(kind, texts, words):
    with pytest.raises(InputError, match=words):
        parse_grid(kind, texts)
