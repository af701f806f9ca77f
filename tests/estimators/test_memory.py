"""What methods have in common is made once, and is what each would have made alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from vlbm.comparison import compare
from vlbm.estimators import fqe
from vlbm.estimators.doubly_robust import DoublyRobust
from vlbm.estimators.fqe import FQE
from vlbm.estimators.memory import Memory, forgetful
from vlbm.suites.exact import graph

SYSTEM = graph()
LOGS = SYSTEM.sample(SYSTEM.behaviour, episodes=60, seed=1)
POLICIES = dict(list(SYSTEM.targets.items())[:2])
CRITIC = FQE(trunk_units=(8,), trunk_steps=20, units=(8,), steps=40)
METHODS = {
    "fqe": CRITIC,
    "dr": DoublyRobust(kind="dr", critic=CRITIC, resamples=50),
    "wdr": DoublyRobust(kind="wdr", critic=CRITIC, resamples=50),
}


def test_what_was_made_from_the_same_is_made_once_until_there_is_no_room():
    made: list[str] = []
    memory = Memory(2)

    def ask(origin: str) -> int:
        return memory.recall(origin, lambda: made.append(origin) or len(made))  # type: ignore[func-returns-value]

    assert [ask(origin) for origin in "abab"] == [1, 2, 1, 2]
    assert ask("c") == 3  # "a" was not asked for longest
    assert [ask(origin) for origin in "ba"] == [2, 4]
    assert [forgetful.recall("a", lambda number=number: number) for number in (5, 6)] == [5, 6]


@pytest.fixture
def trained(monkeypatch) -> dict[str, int]:
    """How often critics and features were trained."""
    counts = {"train": 0, "learn_trunk": 0}

    def counting(name: str, original: Any) -> Any:
        def counted(*inputs: Any, **options: Any) -> Any:
            counts[name] += 1
            return original(*inputs, **options)

        return counted

    for name in counts:
        monkeypatch.setattr(fqe, name, counting(name, getattr(fqe, name)))
    return counts


@pytest.mark.slow
def test_doubly_robust_methods_share_critics_and_all_share_features(trained):
    horizon = SYSTEM.horizon
    together = compare(LOGS, POLICIES, METHODS, seeds=(0, 1), discount=0.9, horizon=horizon)
    assert trained == {"train": 2, "learn_trunk": 2}  # one of each for each seed
    for method, settings in METHODS.items():
        for seed, found in zip((0, 1), together.estimates[method], strict=True):
            alone = settings.fit(LOGS, seed=seed).evaluate(POLICIES, discount=0.9, horizon=horizon)
            assert [(row.value, row.lower, row.upper) for row in found] == [
                (row.value, row.lower, row.upper) for row in alone
            ]


def test_fqe_shares_its_critics_too_where_policies_sample(trained):
    compare(LOGS, POLICIES, METHODS, discount=0.9, horizon=SYSTEM.horizon, actions="sample")
    assert trained == {"train": 1, "learn_trunk": 1}


@pytest.mark.parametrize(
    "change", [{"critic": replace(CRITIC, steps=30)}, pytest.param({"folds": 2}, marks=pytest.mark.slow)]
)
def test_critics_with_other_settings_are_not_shared(trained, change):
    methods = {"wdr": METHODS["wdr"], "other": replace(METHODS["wdr"], **change)}
    compare(LOGS, POLICIES, methods, discount=0.9, horizon=SYSTEM.horizon)
    assert trained["train"] == 2
