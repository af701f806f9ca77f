"""The table of estimates: reading it, saving it, pooling seeds."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import t as student

from vlbm.estimand import Estimand
from vlbm.results.estimate import Estimate, from_returns
from vlbm.results.estimates import Estimates, Origin, all_warnings, pool_seeds
from vlbm.version import VERSION


def estimate_of(returns: list[float], **fields) -> Estimate:
    return Estimate("a", 0.0, 0.0, 0.0, 0.0, np.array(returns), 1.0, **fields)


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
