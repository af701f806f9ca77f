"""Evidence gathered while policies are evaluated, and kept on disk."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest

from pages import made_evidence, made_logged
from vlbm.errors import InputError
from vlbm.estimators.base import Evaluator
from vlbm.estimators.world_models.evaluator import WorldEvaluator
from vlbm.experiments.evidence.collect import DiagnosticsCollector
from vlbm.experiments.evidence.store import load_evidence, save_evidence
from vlbm.nn.training import History
from vlbm.policies import FunctionPolicy
from vlbm.results.diagnostics.support import Support
from vlbm.results.estimate import Estimate
from vlbm.storage import read_information, save_arrays
from walks import walk, walks

POLICIES = {
    "stays": FunctionPolicy(lambda seen: 0 * seen[:, :1]),
    "flees": FunctionPolicy(lambda seen: 0 * seen[:, :1] + 50),
}


@dataclass(frozen=True)
class Walking:
    """All that the settings of fitted walks must say."""

    start: str = "encoder"
    held_out: float = 0.25
    method: str = "walk"
    bounds: None = None
    imagines: bool = True

    def check_estimand(self, asked, space):
        return asked

    def exclude(self, policies, estimand):
        return {}


def walker(logs, models: int = 2) -> WorldEvaluator:
    entry = {"step": 10.0, "loss": 1.0, "validation": 0.5}
    return WorldEvaluator(
        settings=Walking(),
        worlds=(walk(logs),) * models,
        initial=logs.initial_observations(),
        horizon=12,
        histories=(History([entry], best_step=10),) * models,
        seed=0,
        data={"path": None, "episodes": logs.count, "steps": logs.steps},
    )


@pytest.fixture(scope="module")
def logs():
    return walks(40, 12)


@pytest.fixture(scope="module")
def found(logs):
    return DiagnosticsCollector.of(logs, discount=0.9, horizon=12).evaluate_with_diagnostics(
        walker(logs), POLICIES, episodes=30
    )


def test_estimates_are_those_that_evaluating_gives(logs, found):
    again = walker(logs).evaluate(POLICIES, discount=0.9, horizon=12, episodes=30)
    assert found[0].values.tolist() == again.values.tolist()


def test_every_policy_is_seen_in_every_world(found):
    estimates, evidence = found
    for row in estimates:
        seen = evidence.policies[row.policy]
        assert seen.model_values.mean() == pytest.approx(row.value)
        assert len(seen.model_values) == 2


def test_who_leaves_the_log_is_told_from_who_stays(found):
    shares = {name: seen.outside_share for name, seen in found[1].policies.items()}
    assert shares["stays"] < 0.1
    assert shares["flees"] == 1.0


def test_the_model_comes_with_its_training_and_calibration(found):
    model = found[1].model
    assert model.best_steps == (10, 10)
    assert model.histories[0][0]["validation"] == 0.5
    assert model.branch_weights == ()
    assert model.calibration.ahead == (1, 10)
    assert model.latents is None  # a walk has none


def test_without_a_log_what_it_would_tell_is_left_out(logs):
    _, evidence = DiagnosticsCollector.of(None, discount=0.9, horizon=5).evaluate_with_diagnostics(
        walker(logs, 1), POLICIES, episodes=4
    )
    assert evidence.times.tolist() == [0, 1, 2, 3, 4, 5]
    assert evidence.model.calibration is None
    assert evidence.policies["stays"].outside is None


def test_without_a_time_limit_the_log_is_looked_at_as_far_as_it_goes(logs):
    summary = DiagnosticsCollector.of(logs, discount=0.9, horizon=math.inf).summary
    assert summary.times[-1] == logs.longest
    assert summary.mean == pytest.approx(logs.returns(0.9).mean())
    assert summary.truncated == int((~logs.terminated).sum()) > 0
    assert DiagnosticsCollector.of(logs, discount=0.9).summary.truncated < summary.truncated


def test_worlds_that_know_where_their_log_has_data_need_no_log_for_it(logs):
    knowing = replace(walker(logs, 1), support=Support.of(logs))
    _, evidence = DiagnosticsCollector.of(None, discount=0.9, horizon=5).evaluate_with_diagnostics(
        knowing, POLICIES, episodes=4
    )
    assert evidence.policies["stays"].outside_share == 0


@dataclass(frozen=True, eq=False, kw_only=True)
class Guess(Evaluator):
    """A method that imagines nothing."""

    @property
    def space(self) -> Any:
        return walks(2, 2)

    def estimate(self, policies, estimand, **_):
        rows = (Estimate(name, 1.0, 0.1, 0.8, 1.2, np.ones(3), 1.0) for name in policies)
        return rows, [], False


@pytest.mark.parametrize("known", [True, False], ids=["log", "no log"])
def test_a_method_that_imagines_nothing_has_estimates_all_the_same(known, logs):
    collector = DiagnosticsCollector.of(logs if known else None, discount=0.9)
    guess = Guess(settings=Walking(method="guess"), seed=0, data={})
    estimates, evidence = collector.evaluate_with_diagnostics(guess, POLICIES)
    assert len(estimates) == 2
    assert evidence.policies == {}
    assert evidence.model is None


def same(first: Any, second: Any) -> bool:
    if is_dataclass(first):
        return type(first) is type(second) and all(
            same(getattr(first, part.name), getattr(second, part.name)) for part in fields(first)
        )
    if isinstance(first, dict):
        return list(first) == list(second) and all(same(first[name], second[name]) for name in first)
    if isinstance(first, tuple):
        return len(first) == len(second) and all(map(same, first, second))
    if isinstance(first, np.ndarray):
        return first.dtype == second.dtype and np.array_equal(
            first, second, equal_nan=first.dtype.kind == "f"
        )
    return first == second


@pytest.mark.parametrize("make", [made_evidence, made_logged], ids=lambda make: make.__name__)
def test_evidence_comes_back_from_disk_as_it_was(make, tmp_path):
    evidence = make()
    save_evidence(tmp_path / "e.safetensors", evidence)
    assert same(evidence, load_evidence(tmp_path / "e.safetensors"))


def test_evidence_of_another_version_says_what_to_do(tmp_path):
    path = tmp_path / "e.safetensors"
    save_evidence(path, made_logged())
    information = read_information(path)
    information["evidence"]["fields"]["unheard_of"] = 1
    save_arrays(path, {"00000": np.zeros(1)}, information=information)
    with pytest.raises(InputError, match="another version of vlbm"):
        load_evidence(path)
