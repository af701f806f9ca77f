"""Which method to believe, by its own diagnostics."""

from __future__ import annotations

from vlbm.results.diagnostics.choice import choose_method
from vlbm.results.diagnostics.trust import Reason, Verdict


def verdicts(*levels: str) -> dict[str, Verdict]:
    return {f"policy {index}": Verdict((Reason("", level),)) for index, level in enumerate(levels)}


def test_the_method_with_the_fewest_doubtful_estimates_is_believed_and_the_numbers_are_said():
    choice = choose_method(
        {
            "wpdis": verdicts("doubtful", "doubtful", "sound"),
            "vlbm": verdicts("caution", "doubtful", "caution"),
        }
    )
    assert choice.method == "vlbm"
    assert choice.reason == "it has the fewest doubtful estimates (wpdis 2, vlbm 1 of 3)"
    assert choice.reliable


def test_a_policy_that_a_method_leaves_out_counts_against_it():
    few = {"policy 0": verdicts("sound")["policy 0"]}
    choice = choose_method({"dr": few, "fqe": verdicts("sound", "caution")})
    assert choice.method == "fqe"
    assert choice.reason == "it has the fewest doubtful or missing estimates (dr 1, fqe 0 of 2)"


def test_of_equals_the_closest_on_the_held_out_log_is_believed():
    equal = {"a": verdicts("sound"), "b": verdicts("caution")}
    choice = choose_method(equal, errors={"a": 0.31, "b": 0.02})
    assert (choice.method, choice.reason) == (
        "b",
        "it was closest on held-out logged episodes (a off by 31 %, b off by 2 %)",
    )
    assert choose_method(equal, errors={"a": 0.04, "b": 0.02}).method == "a"  # as good as equal
    assert choose_method(equal, errors={"b": 0.02}).method == "a"  # nothing to compare it with


def test_then_cautions_count_and_then_the_order():
    assert choose_method({"a": verdicts("caution"), "b": verdicts("sound")}).method == "b"
    choice = choose_method({"a": verdicts("sound"), "b": verdicts("sound"), "c": verdicts("caution")})
    assert choice.method == "a"
    assert choice.reason == (
        "it has the fewest cautions (a 0, b 0, c 1 of 1); nothing else tells it from b, and it was named "
        "first"
    )


def test_where_every_estimate_is_doubtful_no_method_is_reliable():
    assert not choose_method({"a": verdicts("doubtful"), "b": verdicts("doubtful")}).reliable


def test_a_single_method_needs_no_reason():
    assert choose_method({"a": verdicts("sound")}).reason == ""
