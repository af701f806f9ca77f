"""Estimates: values, intervals, quantiles and shares, by hand and by simulation."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import t as student

from vlbm.estimand import Estimand
from vlbm.results.estimate import Estimate, Estimates, Origin, all_warnings, from_returns, pool_seeds
from vlbm.version import VERSION


def test_one_model_gives_the_mean_and_the_student_interval():
    returns = np.array([1.0, 2.0, 4.0, 9.0])
    estimate = from_returns("a", [returns], length=3.5)
    error = np.sqrt(((returns - 4) ** 2).sum() / 3 / 4)
    assert (estimate.policy, estimate.value, estimate.length) == ("a", 4.0, 3.5)
    assert estimate.standard_error == pytest.approx(error)
    reach = 3.182446305 * error  # Student's t with 3 degrees of freedom at 97.5 %
    assert (estimate.lower, estimate.upper) == pytest.approx((4 - reach, 4 + reach))
    np.testing.assert_array_equal(estimate.returns, returns)


def test_the_interval_covers_the_value_as_often_as_it_says():
    random = np.random.default_rng(0)
    covered = 0
    for _ in range(2000):
        estimate = from_returns("a", [random.normal(3.0, 2.0, 6)], length=1)
        covered += estimate.lower <= 3.0 <= estimate.upper
    # 95 % of 2000 with a deviation of 9.7; a normal interval of six numbers would cover 90 %.
    assert 1870 <= covered <= 1930


@pytest.mark.parametrize(("confidence", "least", "most"), [(0.95, 930, 970), (0.8, 760, 840)])
def test_a_truth_as_far_from_the_models_as_they_are_from_each_other_is_covered(confidence, least, most):
    random = np.random.default_rng(1)
    covered = 0
    for _ in range(1000):
        # Three models and the truth about what all models share, each wrong in its own way.
        *values, truth = random.normal(3.0, 1.0, 4)
        parts = [random.normal(value, 0.01, 50) for value in values]
        estimate = from_returns("a", parts, length=1, confidence=confidence)
        covered += estimate.lower <= truth <= estimate.upper
    assert least <= covered <= most


def test_nobody_is_surer_than_if_the_logged_episodes_had_been_the_policys_own():
    returns = np.random.default_rng(0).normal(3.0, 2.0, 10_000)
    many, few = (from_returns("a", [returns], length=1, logged=logged) for logged in (10**12, 100))
    assert many.standard_error == pytest.approx(from_returns("a", [returns], length=1).standard_error)
    assert few.standard_error == pytest.approx(0.2, rel=0.05)
    assert few.upper - few.value == pytest.approx(1.96 * few.standard_error, rel=1e-3)


def test_models_that_disagree_are_as_uncertain_as_their_values():
    parts = [np.random.default_rng(0).normal(mean, 1.0, 50) for mean in (0.0, 5.0, 13.0)]
    estimate = from_returns("a", parts, length=1)
    values = np.array([part.mean() for part in parts])
    assert estimate.value == pytest.approx(values.mean())
    assert estimate.standard_error == pytest.approx(values.std(ddof=1) * np.sqrt(1 + 1 / 3), rel=1e-3)
    reach = student.ppf(0.975, 2) * estimate.standard_error
    assert estimate.upper - estimate.value == pytest.approx(reach, rel=1e-3)


def test_a_little_more_disagreement_makes_a_little_wider_intervals():
    base = np.random.default_rng(0).normal(size=50)
    widths = []
    for apart in np.linspace(0.0, 1.0, 101):
        parts = [base - apart, base, base + apart]
        estimate = from_returns("a", parts, length=1)
        widths.append(estimate.upper - estimate.lower)
    assert np.diff(widths).min() > -1e-9
    assert widths[-1] > 4 * widths[0]
    assert np.diff(widths).max() < 0.2 * widths[-1]


def test_models_that_agree_pool_their_episodes():
    base = np.random.default_rng(0).normal(size=40)
    parts = [base, base[::-1].copy()]
    estimate = from_returns("a", parts, length=1)
    assert estimate.standard_error == pytest.approx(np.sqrt(base.var(ddof=1) / 40 / 2))
    assert estimate.upper - estimate.value == pytest.approx(student.ppf(0.975, 78) * estimate.standard_error)
    assert len(estimate.returns) == 80


def test_models_count_alike_however_many_episodes_they_have():
    assert from_returns("a", [np.zeros(2), np.ones(8)], length=1).value == 0.5


def estimate_of(returns: list[float], **fields) -> Estimate:
    return Estimate("a", 0.0, 0.0, 0.0, 0.0, np.array(returns), 1.0, **fields)


def test_quantiles_interpolate_between_returns():
    estimate = estimate_of([4.0, 1.0, 3.0, 2.0, 5.0])
    assert estimate.quantile(0.5) == 3.0
    assert estimate.quantiles == pytest.approx(
        {"0.05": 1.2, "0.25": 2.0, "0.5": 3.0, "0.75": 4.0, "0.95": 4.8}
    )


def test_the_cvar_is_the_mean_of_the_worst_share():
    estimate = estimate_of([float(value) for value in range(20, 0, -1)])
    assert estimate.cvar(0.1) == pytest.approx((1 + 2) / 2)
    assert estimate.cvar(0.25) == pytest.approx((1 + 2 + 3 + 4 + 5) / 5)
    assert estimate.cvar(1.0) == pytest.approx(10.5)


def test_the_cvar_fills_its_share_up_with_a_part_of_the_next_return():
    assert estimate_of([1.0, 5.0, 9.0]).cvar(0.5) == pytest.approx((1 + 0.5 * 5) / 1.5)
    assert estimate_of([7.0, 2.0, 9.0]).cvar(0.1) == pytest.approx(2.0)


def test_where_a_method_sees_no_returns_their_quantiles_and_cvar_are_unknown():
    blind = replace(estimate_of([1.0]), returns=None, length=None)
    assert blind.cvar() is None
    assert blind.quantile(0.5) is None
    assert set(blind.quantiles.values()) == {None}


@pytest.fixture
def estimates() -> Estimates:
    rows = tuple(
        from_returns(name, [np.array(returns)], length=2.0, warnings=warnings)
        for name, returns, warnings in (
            ("low", [1.0, 2.0], ()),
            ("high", [5.0, 7.0], ("unlike the data",)),
            ("middle", [3.0, 4.0], ()),
        )
    )
    return Estimates(
        rows=rows,
        method="vlbm",
        seed=3,
        estimand=Estimand(0.99, 200, "mean"),
        settings={"branches": 2, "head_units": [8, 4]},
        data={"path": "logs.npz", "episodes": 7, "steps": 70},
        seconds={"fit": 1.5, "evaluate": 0.5},
        warnings=("short logs",),
    )


def test_estimates_are_a_sequence_in_the_order_given(estimates):
    assert len(estimates) == 3
    assert [row.policy for row in estimates] == ["low", "high", "middle"]
    assert estimates[1].policy == "high"
    assert [row.policy for row in estimates[1:]] == ["high", "middle"]
    np.testing.assert_array_equal(estimates.values, [1.5, 6.0, 3.5])


def test_an_estimate_is_found_by_the_name_of_its_policy(estimates):
    assert estimates["middle"] is estimates[2]
    with pytest.raises(KeyError, match="no policy 'nobody'; there are low, high, middle"):
        estimates["nobody"]


def test_texts_tell_the_best_and_what_speaks_against_it(estimates):
    assert repr(estimates) == (f"Estimates(vlbm, 3 policies, discount 0.99, best {estimates['high']!r})")
    assert repr(estimates["high"]).startswith("Estimate('high', 6 ± 1, [")
    assert "caution: high: Unlike the data." in str(estimates)
    assert "warning: short logs" in str(estimates)


def test_notebooks_show_a_table_in_which_names_do_no_harm(estimates):
    odd = replace(estimates, rows=(replace(estimates[0], policy="<b>low</b>"), *estimates[1:]))
    shown = odd._repr_html_()
    assert "&lt;b&gt;low&lt;/b&gt;" in shown
    assert "<b>low" not in shown
    assert shown.index("high") < shown.index("middle")
    assert "warning: short logs" in shown


def test_a_frame_has_a_row_for_each_policy_best_first(estimates):
    pytest.importorskip("pandas")
    frame = estimates.to_dataframe()
    assert list(frame.index) == ["high", "middle", "low"]
    assert frame.loc["middle", "value"] == 3.5
    assert frame.loc["high", "warnings"] == "unlike the data"


def test_estimates_go_to_other_processes_whatever_made_them(estimates):
    made = replace(estimates, origin=Origin(None, {"policy": lambda seen: seen}, {}))
    assert pickle.loads(pickle.dumps(made)).to_json() == estimates.to_json()


def test_ranking_puts_the_best_first(estimates):
    assert [row.policy for row in estimates.rank()] == ["high", "middle", "low"]


def test_the_json_has_exactly_the_fields_that_were_promised(estimates, tmp_path):
    estimates.save_json(tmp_path / "estimates.json")
    content = json.loads((tmp_path / "estimates.json").read_text())
    assert content == estimates.to_json()
    assert set(content) == {
        "method",
        "version",
        "seed",
        "confidence",
        "discount",
        "estimand",
        "settings",
        "data",
        "seconds",
        "warnings",
        "excluded",
        "feasible",
        "behaviour",
        "backtest",
        "policies",
    }
    assert (content["method"], content["version"], content["seed"]) == ("vlbm", VERSION, 3)
    assert content["data"] == {"path": "logs.npz", "episodes": 7, "steps": 70}
    assert content["warnings"] == ["short logs"]
    first = content["policies"][1]
    assert set(first) == {
        "policy",
        "value",
        "standard_error",
        "lower",
        "upper",
        "quantiles",
        "cvar",
        "length",
        "warnings",
        "model_values",
    }
    assert (first["policy"], first["value"], first["standard_error"]) == ("high", 6.0, 1.0)
    assert first["lower"] == pytest.approx(6 - student.ppf(0.975, 1))
    assert first["quantiles"] == pytest.approx({"0.05": 5.1, "0.25": 5.5, "0.5": 6, "0.75": 6.5, "0.95": 6.9})
    assert first["cvar"] == {"0.1": 5.0}
    assert first["warnings"] == ["unlike the data"]


@pytest.fixture
def blind(estimates) -> Estimates:
    """The same without returns and lengths."""
    return replace(estimates, rows=tuple(replace(row, returns=None, length=None) for row in estimates))


def test_what_a_method_does_not_know_is_null_in_json_and_comes_back_unknown_from_disk(blind, tmp_path):
    first = json.loads(json.dumps(blind.to_json()))["policies"][0]
    assert first["length"] is None
    assert first["cvar"] == {"0.1": None}
    assert first["quantiles"] == dict.fromkeys(("0.05", "0.25", "0.5", "0.75", "0.95"))
    mixed = replace(blind, rows=(blind[0], from_returns("seen", [np.arange(3.0)], length=2.0)))
    mixed.save(tmp_path / "run.safetensors", identity={})
    loaded = Estimates.load(tmp_path / "run.safetensors")
    assert (loaded[0].returns, loaded[0].length) == (None, None)
    assert (loaded[1].returns.tolist(), loaded[1].length) == ([0.0, 1.0, 2.0], 2.0)
    assert loaded.to_json() == mixed.to_json()


def test_pooled_seeds_know_what_all_of_them_know(estimates, blind):
    assert pool_seeds([estimates, blind])[0].returns is None
    assert pool_seeds([estimates, blind])[0].length is None
    assert pool_seeds([estimates, estimates])[0].length == 2.0


def test_tables_have_no_columns_for_what_a_method_does_not_know(estimates, blind):
    assert "CVaR" in str(estimates)
    assert "length" in str(estimates)
    assert "CVaR" not in str(blind)
    assert "length" not in str(blind)
    mixed = replace(blind, rows=(blind[0], estimates[1]))
    (line,) = (line for line in str(mixed).splitlines() if " low " in line)
    assert line.count("\N{EN DASH}") == 2


def test_what_is_estimated_stands_above_the_numbers_and_beside_them(estimates):
    line = "Estimated: return of the first 200 steps, discount 0.99, policies act by their mean"
    assert str(estimates).startswith(line + "\n")
    assert estimates._repr_html_().startswith(f"<p>{line}</p><table>")
    assert estimates.to_json()["estimand"] == {
        "discount": 0.99,
        "horizon": 200,
        "actions": "mean",
        "text": line.removeprefix("Estimated: "),
    }


@pytest.mark.parametrize("horizon", [7, None])
def test_saved_estimates_know_what_they_are_of(estimates, horizon, tmp_path):
    made = replace(estimates, estimand=Estimand(0.9, horizon, "sample"))
    made.save(tmp_path / "new.safetensors", identity={})
    assert Estimates.load(tmp_path / "new.safetensors").estimand == made.estimand


def test_a_warning_that_many_policies_share_is_said_once():
    rows = [
        from_returns(name, [np.zeros(2)], length=1.0, warnings=("too few", *extra))
        for name, extra in (("a", ()), ("b", ("too wide",)), ("c", ()), ("d", ()))
    ]
    estimates = Estimates(tuple(rows), "method", 0, Estimand(0.9, 5, "mean"), {}, {}, warnings=("old data",))
    assert estimates.all_warnings == ["old data", "a, b, c and 1 more: too few", "b: too wide"]


def test_warnings_that_differ_in_numbers_alone_are_said_once_with_their_range():
    def run(seed: int, *moved: str) -> Estimates:
        rows = [
            from_returns(name, [np.zeros(2)], length=1.0, warnings=(f"in 20% of 1,000 steps moved by {by}",))
            for name, by in zip("ab", moved, strict=True)
        ]
        return Estimates(
            tuple(rows), "method", seed, Estimand(0.9, 5, "mean"), {}, {}, warnings=("old data",)
        )

    first, second = run(0, "9.5", "62"), run(1, "1.2e+03", "-4")
    assert first.all_warnings == ["old data", "a, b: in 20% of 1,000 steps moved by 9.5 to 62"]
    assert all_warnings(first, second) == [
        "old data",
        "a, b: in 20% of 1,000 steps moved by -4 to 1.2e+03",
    ]
