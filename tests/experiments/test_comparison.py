"""Several methods side by side: agreement, scores, and what happens when one of them fails."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

from systems import linear_logs
from test_cli import run
from vlbm.errors import InputError, TrainingDivergedError
from vlbm.estimand import Estimand
from vlbm.experiments.compare import compare
from vlbm.experiments.comparison import Comparison
from vlbm.report.comparisons import print_comparison
from vlbm.report.page import render_page
from vlbm.results.backtest import Backtest
from vlbm.results.behaviour import BehaviourRow
from vlbm.results.estimate import from_returns
from vlbm.results.estimates import Estimates

POLICIES = dict.fromkeys(("poor", "middling", "good"), lambda seen: seen[:, :2])
TRUTH = {"poor": 0.0, "middling": 1.0, "good": 4.0}


@dataclass(frozen=True)
class Oracle:
    """An estimator that knows what it will say, and with seed s says s more."""

    values: tuple[float, ...]
    broken: bool = False

    def check_estimand(self, asked, space):
        return asked

    def exclude(self, policies, estimand):
        return {}

    def fit(self, episodes, *, seed=0, **options):
        if self.broken:
            raise InputError("broken on purpose")
        return self

    def evaluate(self, policies, *, discount, horizon, actions, seed=0, **options):
        rows = tuple(
            from_returns(name, [np.array([value + seed - 0.5, value + seed + 0.5])], length=1.0)
            for name, value in zip(policies, self.values, strict=True)
        )
        estimand = Estimand(discount, horizon, actions)
        return Estimates(rows, "oracle", seed, estimand, {}, {}, {"fit": 1.0, "evaluate": 2.0})


def compared(**options) -> Comparison:
    estimators = {"right": Oracle((0.0, 1.0, 4.0)), "reversed": Oracle((4.0, 1.0, 0.0))}
    return compare(linear_logs(), POLICIES, estimators, **options)


def test_agreement_is_the_rank_correlation_between_methods():
    np.testing.assert_allclose(compared().agreement(), [[1, -1], [-1, 1]])


def test_a_method_that_tells_no_policies_apart_agrees_with_nobody():
    estimators = {"right": Oracle((0.0, 1.0, 4.0)), "flat": Oracle((2.0, 2.0, 2.0))}
    comparison = compare(linear_logs(), POLICIES, estimators)
    np.testing.assert_allclose(comparison.agreement(), [[1, 0], [0, 0]])
    json.dumps(comparison.to_json(), allow_nan=False)


def test_scores_are_against_the_truth_for_every_seed():
    comparison = compared(seeds=(0, 2), truth=TRUTH)
    right, wrong = comparison.scores("right"), comparison.scores("reversed")
    assert [score.rank_correlation for score in right] == [1.0, 1.0]
    assert [score.absolute_error for score in right] == [0.0, 2.0]
    assert [score.regret for score in wrong] == [1.0, 1.0]
    assert comparison.seconds("right") == 3.0
    assert all("processor" in estimates.seconds for estimates in comparison.estimates["right"])


def test_one_policy_has_no_rank_and_json_no_nan(capsys):
    from rich.console import Console

    comparison = compare(
        linear_logs(), {"poor": POLICIES["poor"]}, {"right": Oracle((1.0,))}, truth={"poor": 0.0}
    )
    found = json.loads(json.dumps(comparison.to_json(), allow_nan=False))
    assert found["methods"]["right"]["scores"] == [
        {"rank_correlation": None, "regret": 0.0, "absolute_error": 1.0}
    ]
    print_comparison(comparison, Console(width=80))
    assert "nan" not in capsys.readouterr().out


def test_values_are_averaged_over_seeds():
    np.testing.assert_allclose(compared(seeds=(0, 2)).values("right"), [1.0, 2.0, 5.0])


def test_without_truth_there_are_no_scores():
    with pytest.raises(InputError, match="no true returns"):
        compared().scores("right")


def test_a_method_that_fails_is_left_out_with_its_reason():
    estimators = {"bad": Oracle((), broken=True), "right": Oracle((0.0, 1.0, 4.0))}
    comparison = compare(linear_logs(), POLICIES, estimators)
    assert comparison.failures == {"bad": "broken on purpose"}
    assert list(comparison.estimates) == ["right"]
    with pytest.raises(InputError, match="broken on purpose"):
        compare(linear_logs(), POLICIES, {"bad": Oracle((), broken=True)})


@dataclass(frozen=True)
class Divergent(Oracle):
    def fit(self, episodes, *, seed=0, **options):
        raise TrainingDivergedError("training diverged at step 10")


def test_a_method_whose_training_diverges_leaves_the_others_standing():
    estimators = {"wild": Divergent(()), "right": Oracle((0.0, 1.0, 4.0))}
    comparison = compare(linear_logs(), POLICIES, estimators)
    assert comparison.failures == {"wild": "training diverged at step 10"}
    assert list(comparison.estimates) == ["right"]
    with pytest.raises(TrainingDivergedError, match="diverged at step 10"):
        compare(linear_logs(), POLICIES, {"wild": Divergent(())})


def test_what_is_finished_is_handed_over_after_every_method():
    seen: list[list[str]] = []
    compared(finished=lambda so_far: seen.append(list(so_far.estimates)))
    assert seen == [["right"], ["right", "reversed"]]


@dataclass(frozen=True)
class Counted(Oracle):
    """An oracle that counts how often it was asked, and is interrupted when told so."""

    # Not fields: they are no settings.
    asked: ClassVar[list[int]] = []
    interrupted_at: ClassVar[int | None] = None

    def evaluate(self, policies, *, seed=0, **options):
        self.asked.append(seed)
        found = super().evaluate(policies, seed=seed, **options)
        return replace(found, interrupted=seed == self.interrupted_at)


def kept(tmp_path, asked, *, interrupted_at=None, values=(0.0, 1.0, 4.0), **options) -> Comparison:
    Counted.asked, Counted.interrupted_at = asked, interrupted_at
    estimators = {"right": Counted(values)}
    return compare(linear_logs(), POLICIES, estimators, seeds=(0, 1, 2), directory=tmp_path, **options)


def test_what_was_finished_is_not_made_again(tmp_path):
    first = kept(tmp_path, [])
    asked: list[int] = []
    again = kept(tmp_path, asked, resume=True)
    assert asked == []
    assert again.to_json() == first.to_json()
    for before, after in zip(first.estimates["right"], again.estimates["right"], strict=True):
        for row, other in zip(before, after, strict=True):
            np.testing.assert_array_equal(row.returns, other.returns)


def test_an_interrupted_comparison_keeps_its_finished_seeds_and_goes_on_with_the_rest(tmp_path):
    stopped = kept(tmp_path, [], interrupted_at=1)
    assert [found.seed for found in stopped.estimates["right"]] == [0]
    assert stopped.failures == {"right": "interrupted; 1 of 3 seeds were finished"}
    asked: list[int] = []
    whole = kept(tmp_path, asked, resume=True)
    assert asked == [1, 2]
    assert [found.seed for found in whole.estimates["right"]] == [0, 1, 2]


def test_an_interruption_before_anything_is_finished_is_passed_on(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        kept(tmp_path, [], interrupted_at=0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"discount": 0.9}, "discount"), ({"horizon": 9}, "horizon"), ({"values": (4.0, 1.0, 0.0)}, "values")],
)
def test_estimates_of_another_comparison_are_not_taken(tmp_path, changes, words):
    kept(tmp_path, [])
    with pytest.raises(InputError, match=rf"right-0\.safetensors: cannot resume.*other {words};"):
        kept(tmp_path, [], resume=True, **changes)


def test_the_tables_name_every_policy_method_and_failure(capsys):
    from rich.console import Console

    estimators = {"bad": Oracle((), broken=True), "right": Oracle((0.0, 1.0, 4.0))}
    comparison = compare(linear_logs(), POLICIES, estimators, seeds=(0, 1), truth=TRUTH)
    print_comparison(comparison, Console(width=100))
    shown = capsys.readouterr().out
    for word in (
        *POLICIES,
        "right",
        "bad was left out: broken on purpose",
        "rank correlation",
        "1.00 ± 0.00",
    ):
        assert word in shown


def test_values_that_overflowed_leave_room_for_the_others(capsys):
    from rich.console import Console

    estimators = {"wild": Oracle((-2.255e44, 1.0, 4.0)), "right": Oracle((0.25, 1.0, 4.0))}
    comparison = compare(linear_logs(), POLICIES, estimators, truth=TRUTH)
    print_comparison(comparison, Console(width=80))
    shown = capsys.readouterr().out
    for text in ("poor", "-2.25e+44", "0.250 ± ", "7.52e+43"):
        assert text in shown


@dataclass(frozen=True)
class Weighing(Oracle):
    """An oracle that only knows what policies earn when they sample their actions."""

    def check_estimand(self, asked, space):
        return replace(asked, actions="sample")

    def evaluate(self, policies, **options):
        return super().evaluate(policies, **{**options, "actions": "sample"})


@dataclass(frozen=True)
class Limited(Oracle):
    """An oracle that cannot look beyond a horizon, and must not be fitted to find that out."""

    def check_estimand(self, asked, space):
        if asked.infinite_horizon:
            raise InputError("needs a time limit")
        return asked

    def fit(self, episodes, **options):
        raise AssertionError("was fitted")


def test_all_methods_are_asked_for_as_many_steps_as_the_longest_logged_episode_has():
    comparison = compared(discount=0.9)
    assert comparison.estimand == Estimand(0.9, 15, "mean")
    assert {found[0].estimand for found in comparison.estimates.values()} == {comparison.estimand}
    assert compared(horizon=7).estimand.horizon == 7
    assert comparison.to_json()["estimand"]["text"] == str(comparison.estimand)


@pytest.mark.parametrize("wrong", [{"horizon": 0}, {"discount": 1.5}, {"confidence": 1.0}])
def test_a_question_without_an_answer_is_refused_before_anything_is_fitted(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        compare(linear_logs(), POLICIES, {"limited": Limited(())}, **wrong)


def test_a_method_that_cannot_answer_is_left_out_before_anything_is_fitted():
    with pytest.raises(InputError, match="needs a time limit"):
        compare(linear_logs(), POLICIES, {"limited": Limited(())}, horizon=math.inf)

    @dataclass(frozen=True)
    class Known(Oracle):
        def evaluate(self, policies, *, horizon, **options):
            assert horizon == math.inf
            return super().evaluate(policies, horizon=None, **options)

    estimators = {"limited": Limited(()), "right": Known((0.0, 1.0, 4.0))}
    comparison = compare(linear_logs(), POLICIES, estimators, horizon=math.inf)
    assert comparison.failures == {"limited": "needs a time limit"}
    assert comparison.estimand.infinite_horizon
    assert comparison.matches_estimand("right")


def test_estimates_of_something_else_are_marked_and_have_no_scores(capsys):
    from rich.console import Console

    estimators = {"right": Oracle((0.0, 1.0, 4.0)), "weighed": Weighing((0.0, 1.0, 4.0))}
    comparison = compare(linear_logs(), POLICIES, estimators, truth=TRUTH)
    assert comparison.matches_estimand("right")
    assert not comparison.matches_estimand("weighed")
    assert len(comparison.scores("right")) == 1
    assert comparison.scores("weighed") == ()
    found = json.loads(json.dumps(comparison.to_json(), allow_nan=False))["methods"]
    assert found["right"]["scores"] is not None
    assert found["weighed"]["scores"] is None
    assert [found[name]["estimand"]["actions"] for name in found] == ["mean", "sample"]
    assert found["weighed"]["estimates"][0]["estimand"] == found["weighed"]["estimand"]
    print_comparison(comparison, Console(width=100))
    lines = capsys.readouterr().out.splitlines()
    above = lines.index("Estimated: return of the first 15 steps, discount 0.995, policies act by their mean")
    assert above < next(index for index, line in enumerate(lines) if "weighed (sampled)" in line)
    scored = {line.split()[0]: line.split()[1:] for line in lines[-8:] if line.strip()}
    assert scored["right"] == ["1.00", "0.00", "0.0", "3"]
    assert scored["weighed"] == ["(sampled)", "3"]


def test_a_task_name_stands_for_data_policies_and_truth(tmp_path, capsys):
    target = tmp_path / "out.json"
    few = ("--set", "wpdis.resamples=50")
    code = run("compare", "pendulum", "--methods", "wpdis,is", *few, "--json", target, "--quiet")
    assert code == 0
    result = json.loads(target.read_text())
    assert set(result["methods"]) == {"wpdis", "is"}
    # The truth is of mean actions, for which vectors have no importance weights.
    assert [found["scores"] for found in result["methods"].values()] == [None, None]
    assert len(result["truth"]) == len(result["policies"]) == 11
    assert result["estimand"]["text"] == (
        "return of the first 200 steps, discount 0.995, policies act by their mean"
    )
    assert result["agreement"]["is"]["is"] == pytest.approx(1)
    assert "rank correlation" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["pendulum", "--methods", "nonsense"], "unknown method 'nonsense'"),
        (["pendulum", "--methods", ","], "--methods: none were given"),
        (
            ["pendulum", "--methods", "is", "--set", "wis.clip=2"],
            "--set wis.clip=2: expected METHOD.KEY",
        ),
        (["pendulum", "--methods", "is", "--set", "is.clop=2"], "did you mean 'clip'"),
        (["pendulum", "--seeds", "0"], "--seeds 0: must be at least 1"),
        (["pendulum", "--resume"], "--resume needs --save DIR"),
        (["pendulum", "--like-d4rl"], "only dope/ tasks have files"),
        (["pendulums"], "unknown task 'pendulums'; did you mean pendulum"),
    ],
)
def test_what_cannot_be_compared_is_said_in_one_line(arguments, words, capsys):
    assert run("compare", *arguments, "--quiet") == 2
    message = capsys.readouterr().err
    assert words in message
    assert message.count("\n") == 1


@dataclass(frozen=True)
class Choosy(Oracle):
    """An oracle that knows nothing of the policy in the middle."""

    def exclude(self, policies, estimand):
        return {"middling": "it is too plain"}

    def evaluate(self, policies, **options):
        kept = {name: policy for name, policy in policies.items() if name != "middling"}
        return replace(super().evaluate(kept, **options), excluded=self.exclude(policies, None))


def choosy(**options) -> Comparison:
    estimators = {"right": Oracle((0.0, 1.0, 4.0)), "choosy": Choosy((1.0, 6.0))}
    return compare(linear_logs(), POLICIES, estimators, **options)


def test_agreement_over_a_single_policy_is_unknown_and_no_disagreement():
    estimators = {"right": Oracle((0.0, 1.0)), "choosy": Choosy((1.0,))}
    two = {name: POLICIES[name] for name in ("poor", "middling")}
    comparison = compare(linear_logs(), two, estimators)
    np.testing.assert_array_equal(comparison.agreement(), [[1, np.nan], [np.nan, np.nan]])
    assert comparison.to_json()["agreement"]["right"] == {"right": 1.0, "choosy": None}
    assert "ranks otherwise" not in str(comparison)
    assert "ranks otherwise" not in render_page(comparison)


def test_a_policy_that_one_method_cannot_value_keeps_its_values_by_the_others():
    comparison = choosy(truth=TRUTH, seeds=(0, 2))
    np.testing.assert_array_equal(comparison.values("choosy"), [2.0, np.nan, 7.0])
    np.testing.assert_array_equal(comparison.values("right"), [1.0, 2.0, 5.0])
    assert comparison.failures == {}
    assert comparison.excluded("choosy") == {"middling": "it is too plain"}
    np.testing.assert_allclose(comparison.agreement(), 1.0)
    assert [score.absolute_error for score in comparison.scores("choosy")] == [1.5, 3.5]
    assert [score.rank_correlation for score in comparison.scores("choosy")] == [1.0, 1.0]
    found = json.loads(json.dumps(comparison.to_json(), allow_nan=False))
    assert found["methods"]["choosy"]["estimates"][0]["excluded"] == {"middling": "it is too plain"}


def test_tables_and_pages_leave_a_blank_for_a_policy_without_a_value(tmp_path):
    comparison = choosy()
    lines = {line.split()[0]: line.split() for line in str(comparison).splitlines() if line.strip()}
    assert lines["middling"][-1] == "\N{EN DASH}"
    assert lines["good"][-3] == "6.000"
    comparison.report(tmp_path / "page.html")
    assert "middling" in (tmp_path / "page.html").read_text()


def test_a_saved_run_with_a_missing_value_and_a_back_test_comes_back(tmp_path):
    from vlbm.report.saved import load_run, save_run

    comparison = choosy()
    tested = Backtest(5, 15, 1.0, 1.5, 0.2, 0.5, 0.1)
    behaviour = BehaviourRow(1.5, 0.1, 1.3, 1.7, 6)
    facts = {"backtest": tested, "behaviour": behaviour, "feasible": (0.0, 9.0)}
    (found,) = comparison.estimates["choosy"]
    estimates = {**comparison.estimates, "choosy": (replace(found, **facts),)}
    save_run(replace(comparison, estimates=estimates), tmp_path)
    again = load_run(tmp_path)
    assert again.backtest == {"choosy": tested}
    assert again.behaviour == behaviour
    assert again.estimates["choosy"][0].feasible == (0.0, 9.0)
    assert again.excluded("choosy") == {"middling": "it is too plain"}
    content = again.to_json()
    assert content["backtest"]["choosy"]["error_share"] == 0.1
    assert content["behaviour"]["value"] == 1.5


def test_a_method_that_can_value_no_policy_is_left_out_before_anything_is_fitted():
    from vlbm.estimators.importance import WPDIS

    estimators = {"wpdis": WPDIS(), "right": Oracle((0.0, 1.0, 4.0))}
    comparison = compare(linear_logs(), POLICIES, estimators, actions="sample")
    assert "has no log-probability" in comparison.failures["wpdis"]
    assert list(comparison.estimates) == ["right"]


def test_every_method_is_back_tested_once_unless_told_not_to():
    @dataclass(frozen=True)
    class Tested(Oracle):
        asked: ClassVar[list[tuple[int, bool]]] = []

        def evaluate(self, policies, *, seed=0, backtest=False, **options):
            self.asked.append((seed, backtest))
            return super().evaluate(policies, seed=seed, **options)

    estimators = {"right": Tested((0.0, 1.0, 4.0))}
    compare(linear_logs(), POLICIES, estimators, seeds=(3, 4))
    compare(linear_logs(), POLICIES, estimators, seeds=(3,), backtest=False)
    assert Tested.asked == [(3, True), (4, False), (3, False)]


def test_methods_lists_what_there_is(capsys):
    assert run("methods") == 0
    shown = capsys.readouterr().out
    assert "wpdis" in shown
    assert "vlm-rsa-ensemble" in shown


def test_a_printed_comparison_is_a_table_that_says_what_is_estimated():
    text = str(compared(discount=0.9, horizon=7))
    assert "return of the first 7 steps, discount 0.9" in text
    for word in ("right", "reversed", "poor", "middling", "good"):
        assert word in text
    assert repr(compared()) == "Comparison(3 policies, methods right, reversed)"
    assert "reversed" in compared()._repr_html_()
