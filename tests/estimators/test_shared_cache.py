"""What methods have in common is made once, and is what each would have made alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from vlbm.estimators import fqe
from vlbm.estimators.doubly_robust import DoublyRobust
from vlbm.estimators.fqe import FQE
from vlbm.estimators.shared_cache import SharedCache
from vlbm.experiments.compare import compare
from vlbm.suites.exact import graph

SYSTEM = graph()
LOGS = SYSTEM.sample(SYSTEM.behaviour, episodes=60, seed=1)
POLICIES = dict(list(SYSTEM.targets.items())[:2])
CRITIC = FQE(units=(8,), rounds=1, steps=40)
METHODS = {
    "fqe": CRITIC,
    "dr": DoublyRobust(kind="dr", critic=CRITIC, resamples=50),
    "wdr": DoublyRobust(kind="wdr", critic=CRITIC, resamples=50),
}


def test_what_was_made_from_the_same_is_made_once_until_there_is_no_room():
    made: list[str] = []
    cache = SharedCache(2)

    def ask(origin: str) -> int:
        return cache.recall(origin, lambda: made.append(origin) or len(made))  # type: ignore[func-returns-value]

    assert [ask(origin) for origin in "abab"] == [1, 2, 1, 2]
    assert ask("c") == 3  # "a" was not asked for longest
    assert [ask(origin) for origin in "ba"] == [2, 4]
    assert [SharedCache(0).recall("a", lambda number=number: number) for number in (5, 6)] == [5, 6]


@pytest.fixture
def fits(monkeypatch) -> list[int]:
    """The seeds that critics were trained with."""
    seeds: list[int] = []
    original = fqe.fit_q

    def counted(*inputs: Any, seed: int, **options: Any) -> Any:
        seeds.append(seed)
        return original(*inputs, seed=seed, **options)

    monkeypatch.setattr(fqe, "fit_q", counted)
    return seeds


def test_methods_that_ask_the_same_of_critics_share_them(fits):
    horizon = SYSTEM.horizon
    together = compare(LOGS, POLICIES, METHODS, seeds=(0, 1), discount=0.9, horizon=horizon)
    assert sorted(fits) == [0, 0, 1]  # once for each seed, and once for the back-test
    found = together.estimates["wdr"][1]
    alone = METHODS["wdr"].fit(LOGS, seed=1).evaluate(POLICIES, discount=0.9, horizon=horizon)
    assert [(row.value, row.lower) for row in found] == [(row.value, row.lower) for row in alone]


@pytest.mark.parametrize("change", [{"critic": replace(CRITIC, steps=30)}, {"folds": 2}])
def test_critics_with_other_settings_are_not_shared(fits, change):
    methods = {"wdr": METHODS["wdr"], "other": replace(METHODS["wdr"], **change)}
    compare(LOGS, POLICIES, methods, discount=0.9, horizon=SYSTEM.horizon, backtest=False)
    assert len(fits) == 1 + change.get("folds", 1)
