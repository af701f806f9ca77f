"""Places, ticks and written numbers."""

from __future__ import annotations

import pytest

from vlbm.report.charts.scale import Scale, extent
from vlbm.report.numbers import (
    format_count,
    format_number,
    format_percent,
    format_probability,
    format_short,
    make_formatter,
    spell_out,
)


def test_a_scale_maps_its_ends_and_middle():
    scale = Scale(10.0, 30.0, 100.0, 0.0)
    assert [scale(value) for value in (10.0, 20.0, 30.0)] == [100.0, 50.0, 0.0]


def test_a_scale_without_width_puts_everything_in_the_middle():
    assert Scale(5.0, 5.0, 0.0, 100.0)(5.0) == 50.0


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0.0, 1.0, [0.0, 0.25, 0.5, 0.75, 1.0]),
        (-3.0, 41.0, [0.0, 10.0, 20.0, 30.0, 40.0]),
        (-1045.0, -137.0, [-1000.0, -750.0, -500.0, -250.0]),
        (0.0, 0.004, [0.0, 0.001, 0.002, 0.003, 0.004]),
        (7.0, 7.0, [7.0]),
    ],
)
def test_ticks_are_round_and_within_the_scale(low, high, ticks):
    assert Scale(low, high, 0.0, 1.0).ticks() == ticks


def test_an_extent_is_never_empty_and_ignores_what_is_no_number():
    assert extent([1.0, 3.0], margin=0.5) == (0.0, 4.0)
    assert extent([2.0, 2.0]) == (1.8, 2.2)
    assert extent([0.0]) == (-1.0, 1.0)
    assert extent([float("nan")]) == (0.0, 1.0)


def test_numbers_of_one_kind_have_the_same_decimals():
    write = make_formatter([-512.34, 2.0])
    assert [write(value) for value in (-512.34, 2.0, -0.0001)] == ["\N{MINUS SIGN}512.3", "2.0", "0.0"]
    assert make_formatter([-1234.5])(-1234.56) == "\N{MINUS SIGN}1,235"
    assert make_formatter([0.02])(0.0123) == "0.0123"
    assert make_formatter([])(3.0) == "3"
    assert make_formatter([2e30])(1.5e30) == "1.5e+30"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (2500.0, "2,500"),
        (0.25, "0.25"),
        (-3.0, "\N{MINUS SIGN}3"),
        (1e-9, "1e-09"),
        (4e8, "4e+08"),
    ],
)
def test_axes_show_no_more_digits_than_needed(value, text):
    assert format_short(value).replace("\N{MINUS SIGN}", "-") == text.replace("\N{MINUS SIGN}", "-")


def test_nothing_is_certain():
    assert [format_probability(value) for value in (0.0, 0.004, 0.5, 0.999, 1.0)] == [
        "< 0.01", "< 0.01", "0.50", "> 0.99", "> 0.99",
    ]  # fmt: skip


def test_small_words():
    assert (spell_out(2), spell_out(40)) == ("two", "40")
    assert (format_count(1, "step"), format_count(2000, "step")) == ("1 step", "2,000 steps")
    assert format_percent(0.123, 1) == "12.3\N{NO-BREAK SPACE}%"
    assert format_number(float("nan"), 1) == "\N{EN DASH}"
