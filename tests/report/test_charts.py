"""Charts: exact places, and a table with the same numbers under each."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from vlbm.report.charts.frame import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH
from vlbm.report.charts.histogram import bin_edges, histogram_chart
from vlbm.report.charts.intervals import PAD, Mark, interval_bar, lanes_chart
from vlbm.report.charts.lines import Line, line_chart
from vlbm.report.charts.scatter import ScatterPoint, draw_cloud, scatter_chart
from vlbm.report.charts.shares import shares_chart
from vlbm.report.charts.svg import element, finite_runs
from vlbm.report.parts import Chart

EVIL = "<script>alert(1)</script> \"'&"


def parsed(chart: Chart | str) -> ElementTree.Element:
    """Pictures are whole XML; it does not parse otherwise."""
    return ElementTree.fromstring(str(chart.picture if isinstance(chart, Chart) else chart))


def shapes(tree: ElementTree.Element, name: str, style: str = "") -> list[ElementTree.Element]:
    return [found for found in tree.iter(name) if style in found.get("class", "").split() or not style]


def places(points: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in (pair.split(",") for pair in points.split())]


def test_text_and_attributes_are_escaped():
    made = element("text", EVIL, title=EVIL, class_="c0", stroke_width=2, missing=None)
    assert made.startswith(
        '<text title="&lt;script&gt;alert(1)&lt;/script&gt; &#34;&#39;&amp;" class="c0" stroke-width="2">'
    )
    assert "<script" not in made


def test_a_line_goes_through_its_points_and_stops_at_gaps():
    x = [0.0, 1.0, 2.0, 3.0, 4.0]
    chart = line_chart(
        "A",
        [Line("a", "c0", x, [0.0, 1.0, float("nan"), 1.0, 0.0])],
        x_label="x",
        y_label="y",
        y_range=(0.0, 1.0),
    )
    first, second = (places(found.get("points")) for found in shapes(parsed(chart), "polyline"))
    across = (WIDTH - RIGHT - LEFT) / 4
    assert first == [(LEFT, HEIGHT - BOTTOM), (LEFT + across, TOP)]
    assert second == [(WIDTH - RIGHT - across, TOP), (WIDTH - RIGHT, HEIGHT - BOTTOM)]
    assert [row[1] for row in chart.table.rows] == ["0", "1", "\N{EN DASH}", "1", "0"]


def test_a_band_encloses_its_line():
    line = Line("a", "c0", [0.0, 1.0], [1.0, 2.0], [0.0, 1.0], [2.0, 3.0])
    chart = line_chart("A", [line], x_label="x", y_label="y", y_range=(0.0, 3.0))
    (band,) = shapes(parsed(chart), "polygon", "band")
    floor, top = HEIGHT - BOTTOM, TOP
    third = (floor - top) / 3
    assert np.array(places(band.get("points"))) == pytest.approx(
        np.array(
            [(LEFT, floor), (WIDTH - RIGHT, floor - third), (WIDTH - RIGHT, top), (LEFT, floor - 2 * third)]
        ),
        abs=0.06,
    )
    assert chart.table.rows[0] == ("0", "1 (0 to 2)")


def test_a_long_line_has_a_short_table_with_both_ends():
    x = np.arange(1001)
    table = line_chart("A", [Line("a", "c0", x, x * 2.0)], x_label="x", y_label="y").table
    assert len(table.rows) == 11
    assert table.rows[0] == ("0", "0")
    assert table.rows[-1] == ("1,000", "2,000")


def test_stretches_are_what_lies_between_gaps():
    nan = float("nan")
    assert finite_runs([nan, 1, 2, nan, 3]) == [(1, 3), (4, 5)]
    assert finite_runs([nan]) == []


def test_bars_of_a_histogram_add_up_to_everything():
    groups = [("logged", "logged", np.arange(10.0)), ("imagined", "c0", np.full(4, 9.0))]
    chart = histogram_chart("R", groups, x_label="return", mark=("value", 4.5))
    shares = np.array(
        [[float(cell.split("\N{NO-BREAK SPACE}")[0]) for cell in row[1:]] for row in chart.table.rows]
    )
    assert shares.sum(axis=0) == pytest.approx([100.0, 100.0])
    assert shares[-1].tolist() == [10.0, 100.0]
    (marker,) = shapes(parsed(chart), "line", "marker")
    assert float(marker.get("x1")) == pytest.approx((LEFT + WIDTH - RIGHT) / 2)


def test_equal_returns_still_have_a_histogram():
    edges = bin_edges([np.full(5, 3.0)])
    assert (np.diff(edges) > 0).all()
    parsed(histogram_chart("R", [("a", "c0", np.full(5, 3.0))], x_label="return"))


def test_an_interval_bar_is_placed_by_shares_of_its_width():
    bar = interval_bar(
        [Mark("a", "c0", 0.0, 5.0, 10.0)], (0.0, 20.0), description=EVIL, reference=20.0, truth=10.0
    )
    tree = parsed(bar)
    (reach,) = shapes(tree, "rect", "reach")
    width = 100 - 2 * PAD
    assert reach.get("x") == f"{PAD:.2f}%"
    assert reach.get("width") == f"{width / 2:.2f}%"
    assert shapes(tree, "circle")[0].get("cx") == f"{PAD + width / 4:.2f}%"
    assert shapes(tree, "line", "reference")[0].get("x1") == f"{100 - PAD:.2f}%"
    assert shapes(tree, "svg", "spot")[0].get("x") == "50.00%"
    assert tree.get("aria-label") == EVIL


def test_a_reference_outside_the_bar_is_not_drawn():
    bar = interval_bar([Mark("a", "c0", 0.0, 1.0, 2.0)], (0.0, 2.0), description="", reference=9.0)
    assert not shapes(parsed(bar), "line", "reference")


def test_lanes_have_a_dot_for_every_method_and_policy():
    rows = [(name, [Mark(m, "c0", 0.0, 1.0, 2.0) for m in ("vlbm", "fqe")], 1.5) for name in ("hare", EVIL)]
    chart = lanes_chart("M", rows, (0.0, 2.0), write=lambda value: f"{value:g}")
    tree = parsed(chart)
    assert len(shapes(tree, "circle")) == 4
    assert chart.table.headings == ("policy", "vlbm", "fqe", "truth")
    assert chart.table.rows[0] == ("hare", "1 (0 to 2)", "1 (0 to 2)", "1.5")


def test_a_scatter_has_equal_axes_and_the_line_of_equality():
    spots = [
        ScatterPoint("hare", "c0", 0.0, 10.0, 0.0, 10.0),
        ScatterPoint("snail", "c0", 10.0, 0.0, 0.0, 5.0),
    ]
    chart = scatter_chart(
        "T", spots, x_label="true value", y_label="estimate", write=lambda value: f"{value:g}"
    )
    tree = parsed(chart)
    (guide,) = shapes(tree, "line", "guide")
    assert float(guide.get("x1")) == LEFT
    assert float(guide.get("y2")) == TOP
    assert chart.table.rows[0] == ("hare", "0", "10 (0 to 10)", "10")
    assert "hare: estimate 10, true value 0" in "".join(tree.itertext())


def test_a_cloud_draws_every_point_once():
    points = np.random.default_rng(0).normal(size=(37, 2))
    bounds = np.stack([points.min(axis=0), points.max(axis=0)])
    tree = parsed(draw_cloud("C", [("c0", points[:20]), ("logged", points[20:]), ("c1", points[:0])], bounds))
    assert [path.get("d").count("M") for path in tree.iter("path")] == [20, 17]


def test_shares_fill_the_whole_row():
    chart = shares_chart("B", [("model 1", [0.5, 0.25, 0.25]), ("model 2", [1.0])], part="branch")
    widths = [float(found.get("width")) for found in shapes(parsed(chart), "rect")]
    assert widths[0] + 1.5 == pytest.approx(2 * (widths[1] + 1.5), abs=0.2)
    assert chart.table.rows[1][2:] == ("\N{EN DASH}", "\N{EN DASH}")


def test_every_picture_says_what_it_shows():
    for chart in (
        line_chart("Title", [Line("a", "c0", [0, 1], [0, 1])], x_label="x", y_label="y"),
        histogram_chart("Title", [("a", "c0", np.arange(3.0))], x_label="x"),
        shares_chart("Title", [("a", [1.0])], part="branch"),
    ):
        assert re.search(r'role="img" aria-label="Title"', str(chart.picture))
