"""Agreement in level."""

from __future__ import annotations

import numpy as np
import pytest

from vlbm.results.diagnostics.agreement import find_level_gaps

VALUES = {"vlbm": np.array([60.0, 50.0, 55.0]), "fqe": np.array([20.0, 10.0, 15.0])}


def test_equal_rankings_that_are_40_of_50_apart_have_a_gap():
    (gap,) = find_level_gaps("vlbm", VALUES)
    assert (gap.other, gap.difference, gap.shift, gap.extent) == ("fqe", 40.0, -40.0, 50.0)
    assert gap.share == pytest.approx(0.8)
    assert gap.one_sided


def test_differences_that_cancel_are_not_one_sided():
    (gap,) = find_level_gaps("a", {"a": np.array([0.0, 1.0]), "b": np.array([1.0, 0.0])})
    assert (gap.difference, gap.shift, gap.one_sided) == (1.0, 0.0, False)


def test_the_largest_gap_comes_first_and_policies_without_a_value_are_left_out():
    near = {"near": np.array([60.0, np.nan, 56.0])}
    assert [gap.other for gap in find_level_gaps("vlbm", {**near, **VALUES})] == ["fqe", "near"]
    assert find_level_gaps("vlbm", {"vlbm": VALUES["vlbm"], "none": np.full(3, np.nan)}) == ()


def test_equal_values_are_no_gap():
    (gap,) = find_level_gaps("a", {"a": np.zeros(2), "b": np.zeros(2)})
    assert gap.share == 0.0
