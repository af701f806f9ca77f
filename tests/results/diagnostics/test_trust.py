"""Verdicts and their reasons."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from vlbm.results.diagnostics.trust import OUTSIDE, Diagnostics, action_warnings, assess_trust
from vlbm.results.estimate import Estimate

ROW = Estimate("hare", 10.0, 1.0, 8.0, 12.0, np.full(5, 10.0), 100.0)
CALM = Diagnostics(
    candidates=np.array([0.0, 10.0, 20.0]),
    logged_returns=np.array([0.0, 15.0]),
    logged_terminated=0.5,
    outside=0.02,
    terminated=0.4,
    model_values=np.array([9.0, 10.0, 11.0]),
)


def test_what_nothing_speaks_against_is_sound_and_says_why():
    verdict = assess_trust(ROW, CALM)
    assert verdict.level == "sound"
    assert verdict.objections == ()
    text = " ".join(reason.text for reason in verdict.reasons)
    assert "stays where the log has data: 2 %" in text
    assert "3 models put it between 9 and 11" in text


def test_how_much_lies_outside_is_what_the_estimate_itself_says():
    verdict = assess_trust(replace(ROW, details={OUTSIDE: 0.7}), CALM)
    assert "most of the time: 70 %" in verdict.reasons[0].text
    assert assess_trust(replace(ROW, details={OUTSIDE: 0.7}), replace(CALM, outside=None)).level == "doubtful"


@pytest.mark.parametrize(
    ("share", "level", "words"),
    [
        (0.9, "doubtful", "Its actions were never tried: at 90 % of logged observations"),
        (0.3, "caution", "Some of its actions were never tried: at 30 %"),
        (0.05, "sound", "It acts much as the log does: at 5 %"),
    ],
)
def test_a_method_that_imagines_no_steps_speaks_of_actions_and_says_it_once(share, level, words):
    row = replace(ROW, returns=None, details={OUTSIDE: share}, warnings=action_warnings(share))
    verdict = assess_trust(row, CALM)
    texts = [reason.text for reason in verdict.reasons]
    assert verdict.level == level
    assert sum("of logged observations it does what" in text for text in texts) == 1
    assert any(text.startswith(words) for text in texts)
    assert not any("imagined steps" in text for text in texts)


@pytest.mark.parametrize(
    ("changes", "level", "words"),
    [
        ({"outside": 0.63}, "doubtful", "leaves the logged data most of the time: 63 %"),
        ({"outside": 0.5}, "doubtful", "most of the time"),
        ({"outside": 0.2}, "caution", "leaves the logged data at times: 20 %"),
        (
            {"model_values": np.array([0.0, 20.0])},
            "caution",
            "models disagree: 2 models put it between 0 and 20",
        ),
        ({"logged_returns": np.array([0.0, 9.0])}, "caution", "above the best logged return (9)"),
        ({"logged_returns": np.array([11.0, 19.0])}, "caution", "below the worst logged return (11)"),
        ({"terminated": 0.05}, "caution", "5 % of the imagined ones"),
        (
            {"candidates": np.array([10.0, 13.0]), "model_values": np.array([10.0, 10.1])},
            "caution",
            "too wide to rank by",
        ),
    ],
)
def test_a_reason_against_it_is_named_first(changes, level, words):
    verdict = assess_trust(ROW, replace(CALM, **changes))
    assert verdict.level == level
    assert words in verdict.reasons[0].text
    assert verdict.reasons[0].brief


def test_the_gravest_reason_comes_first_whatever_else_there_is():
    row = replace(ROW, warnings=("one episode of 20 carries 90% of the weight",))
    verdict = assess_trust(row, replace(CALM, outside=0.9))
    assert [reason.level for reason in verdict.objections] == ["doubtful", "caution"]
    assert verdict.reasons[1].text == "One episode of 20 carries 90% of the weight."


def test_what_is_not_known_is_not_held_against_it():
    assert assess_trust(ROW, Diagnostics(candidates=np.array([10.0]))).reasons == ()


def test_equal_logged_returns_and_equal_candidates_say_nothing():
    found = assess_trust(ROW, Diagnostics(candidates=np.full(3, 10.0), logged_returns=np.full(4, 2.0)))
    assert found.level == "sound"


def test_one_model_cannot_agree_with_itself():
    verdict = assess_trust(ROW, replace(CALM, model_values=np.array([10.0])))
    assert verdict.level == "sound"
    assert any("A single model was fitted" in reason.text for reason in verdict.reasons)


def test_a_log_worth_hardly_any_episode_makes_an_estimate_doubtful():
    verdict = assess_trust(replace(ROW, details={"effective_sample_size": 1.26}), CALM)
    assert verdict.level == "doubtful"
    assert verdict.reasons[0].text == "The log is worth only 1.3 episodes of this policy."


def test_a_log_worth_many_episodes_speaks_for_an_estimate():
    verdict = assess_trust(replace(ROW, details={"effective_sample_size": 57.3}), CALM)
    assert any(reason.text == "The log is worth 57 episodes of this policy." for reason in verdict.reasons)
