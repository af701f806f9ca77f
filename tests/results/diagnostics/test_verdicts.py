"""Verdicts on all estimates of a run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from vlbm.estimand import Estimand
from vlbm.results.diagnostics.trust import OUTSIDE
from vlbm.results.diagnostics.verdicts import judge, judge_methods, list_objections
from vlbm.results.estimate import Estimate
from vlbm.results.estimates import Estimates
from vlbm.results.logged_returns import LoggedReturns
from walks import walks


def made(method: str = "vlbm", *, outside: float | None = None, **changes) -> Estimates:
    details = {} if outside is None else {OUTSIDE: outside}
    rows = tuple(
        Estimate(name, value, 1.0, value - 2, value + 2, np.full(5, value), 9.0, details=details, **changes)
        for name, value in (("hare", 10.0), ("snail", 20.0))
    )
    return Estimates(rows, method, 0, Estimand(0.9, 10, "mean"), {}, {}, logged=LoggedReturns(0.0, 15.0, 0.5))


def test_estimates_are_judged_by_what_they_carry():
    verdicts = judge(made(outside=0.1, model_values=(0.0, 20.0), terminated=0.4))
    assert {name: [reason.brief for reason in found.objections] for name, found in verdicts.items()} == {
        "hare": ["models disagree"],
        "snail": ["models disagree", "above the best logged return"],
    }


def test_estimates_from_nowhere_are_not_held_against_the_log():
    assert {found.level for found in judge(replace(made(), logged=None)).values()} == {"sound"}


def test_what_one_method_imagined_outside_the_log_speaks_to_the_others():
    found = judge_methods({"wis": made("wis"), "vlbm": made(outside=0.7, model_values=(10.0,))})
    assert found["wis"]["hare"].level == found["vlbm"]["hare"].level == "doubtful"
    assert judge_methods({"wis": made("wis")})["wis"]["hare"].level == "sound"


@pytest.mark.parametrize("returns", [np.full(5, 1.0), None])
def test_what_others_imagined_is_not_said_to_be_of_the_method_itself(returns):
    """A method without imagined returns may have a share of its own, and that is of its actions."""
    critic = replace(made("dr"), rows=tuple(replace(row, returns=returns) for row in made("dr")))
    text = judge_methods({"dr": critic, "vlbm": made(outside=0.7, model_values=(10.0,))})["dr"]["hare"]
    assert text.objections[0].text == (
        "It leaves the logged data most of the time: 70 % of imagined steps lie farther from the log than "
        "logged steps do."
    )


def test_objections_are_listed_once_for_all_policies_and_the_gravest_first():
    assert list_objections(judge(made(outside=0.7, warnings=("too few",)))) == [
        (
            "doubtful",
            "hare, snail: It leaves the logged data most of the time: 70 % of imagined steps lie farther "
            "from the log than logged steps do.",
        ),
        ("caution", "hare, snail: Too few."),
        (
            "caution",
            "snail: The value is above the best logged return (15): nothing in the log shows it.",
        ),
    ]


def test_logged_returns_are_those_of_the_estimand_and_unknown_where_endless_ones_were_cut_off():
    log = walks(2, 3)
    found = LoggedReturns.of(log, Estimand(0.9, 2, "mean"))
    returns = log.returns(0.9, horizon=2)
    assert (found.lowest, found.highest) == (returns.min(), returns.max())
    endless = Estimand(0.9, None, "mean")
    cut = replace(log, terminated=np.zeros(log.count, bool))
    assert LoggedReturns.of(cut, endless) == LoggedReturns(None, None, 0.0)
    ended = replace(log, terminated=np.ones(log.count, bool))
    assert LoggedReturns.of(ended, endless).highest == log.returns(0.9).max()
