"""Settings are chosen by logged episodes alone: which are tried, how long, and which is best."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import numpy as np
import pytest

from systems import noise_logs
from vlbm.errors import InputError, TrainingDivergedError
from vlbm.estimators.world_models.vlbm import VLBM
from vlbm.experiments import select
from vlbm.experiments.grids import PAPER_GRID, make_grid
from vlbm.experiments.select import Candidate, Selection, select_settings

LOGS = noise_logs([6, 5, 6, 4])


@dataclass(frozen=True)
class Trainable:
    """Scored by how far its rate is from 0.3, and noisily while training is short."""

    steps: int = 900
    rate: float = 1.0
    method: str = "trainable"


@pytest.fixture
def fits(monkeypatch) -> list[tuple[float, int]]:
    """Every fit that was asked for: rate and steps."""
    found: list[tuple[float, int]] = []

    def score(estimator, episodes, seed):
        found.append((estimator.rate, estimator.steps))
        if estimator.rate > 5:
            raise TrainingDivergedError("too fast")
        return abs(estimator.rate - 0.3)

    monkeypatch.setitem(select.SCORES, "open-loop", score)
    return found


RATES = make_grid(rate=(0.1, 0.2, 0.3, 0.4, 1.0, 2.0, 3.0, 9.0, 0.35))


def test_the_papers_grid_has_its_seven_rates_and_eight_constants():
    assert len(PAPER_GRID) == 7 * 8
    assert all(settings["rsa_weight"] == settings["elbo_weight"] for settings in PAPER_GRID)
    assert {settings["learning_rate"] for settings in PAPER_GRID} == {
        3e-3,
        1e-3,
        7e-4,
        5e-4,
        3e-4,
        1e-4,
        5e-5,
    }


def test_a_grid_trains_every_candidate_to_the_end(fits):
    found = select_settings(Trainable(), LOGS, RATES, search="grid")
    assert fits == [(settings["rate"], 900) for settings in RATES]
    assert found.best.settings == {"rate": 0.3}


def test_halving_gives_the_better_third_three_times_the_steps(fits):
    found = select_settings(Trainable(), LOGS, RATES, search="halving")
    assert [steps for _, steps in fits] == [300] * 9 + [900] * 3
    assert {rate for rate, _ in fits[9:]} == {0.3, 0.35, 0.4} or {rate for rate, _ in fits[9:]} == {
        0.3,
        0.35,
        0.2,
    }
    assert found.best.settings == {"rate": 0.3}


def test_what_diverges_is_the_worst_and_stops_nothing(fits):
    found = select_settings(Trainable(), LOGS, make_grid(rate=(9.0, 2.0)), search="grid")
    assert found.best.settings == {"rate": 2.0}
    assert found.candidates[0].score == np.inf
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))["candidates"][0]["score"] is None


def test_the_best_is_among_those_trained_longest_whatever_a_short_run_promised():
    short, long = Candidate({"rate": 1}, 10, 0.1, 0.0), Candidate({"rate": 2}, 90, 0.5, 0.0)
    assert Selection("open-loop", (short, long)).best is long


def test_a_search_that_was_stopped_fits_nothing_twice(fits, tmp_path):
    first = select_settings(Trainable(), LOGS, RATES[:2], search="grid", directory=tmp_path)
    fits.clear()
    again = select_settings(Trainable(), LOGS, RATES[:3], search="grid", directory=tmp_path)
    assert fits == [(0.3, 900)]
    assert again.candidates[:2] == first.candidates


def test_results_of_another_seed_are_refused(fits, tmp_path):
    select_settings(Trainable(), LOGS, RATES[:1], search="grid", directory=tmp_path)
    with pytest.raises(InputError, match="seed"):
        select_settings(Trainable(), LOGS, RATES[:1], search="grid", directory=tmp_path, seed=1)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"score": "truth"}, "score truth"),
        ({"search": "luck"}, "search luck"),
        ({"grid": ()}, "nothing to choose"),
    ],
)
def test_searches_that_make_no_sense_are_refused(wrong, message):
    with pytest.raises(InputError, match=message):
        select_settings(Trainable(), LOGS, **{"grid": RATES, **wrong})


SMALL = VLBM(
    branches=2,
    latents=2,
    units=4,
    head_units=(4,),
    g_units=(4,),
    steps=4,
    validate_every=2,
    batch=4,
    models=1,
    keep=None,
    window=3,
)


def test_a_fit_that_ctrl_c_ended_is_not_scored(tmp_path, monkeypatch):
    fit = VLBM.fit

    def interrupted(self, episodes, **options):
        fitted = fit(self, episodes, **options)
        histories = tuple(replace(history, interrupted=True) for history in fitted.histories)
        return replace(fitted, histories=histories)

    monkeypatch.setattr(VLBM, "fit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        select_settings(SMALL, LOGS, make_grid(learning_rate=(1e-2,)), search="grid", directory=tmp_path)
    assert not (tmp_path / "search.json").exists()


@pytest.mark.parametrize("score", [pytest.param("open-loop", marks=pytest.mark.slow), "elbo"])
def test_a_model_that_has_learnt_something_scores_better_than_one_that_has_not(score):
    learnt = replace(SMALL, steps=150, validate_every=50)
    grid = make_grid(learning_rate=(1e-9, 1e-2))
    logs = noise_logs([8] * 12)
    assert select_settings(learnt, logs, grid, search="grid", score=score).best.settings == {
        "learning_rate": 1e-2
    }
