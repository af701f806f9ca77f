"""Figures of stored rows: drawn from what there is, and the same files every time."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from made_benchmarks import POLICIES, made_latents, made_row
from vlbm.experiments.rows import Latents, Value, read_rows, write_row

pytest.importorskip("matplotlib", reason="matplotlib is not installed (extra 'report')")
pytest.importorskip("sklearn", reason="scikit-learn is not installed (extra 'report')")

from vlbm.experiments.figures import FORMATS, draw_figures
from vlbm.experiments.figures.bars import make_bars
from vlbm.experiments.figures.estimates import split_lines
from vlbm.experiments.figures.latents import measure_silhouette, rank_policies
from vlbm.experiments.figures.weights import list_weights
from vlbm.experiments.tables import METRICS

TASKS = ("dope/hopper-medium", "dope/hopper-medium-expert", "dope/ant-medium-expert")


def eleven(task: str, method: str, **changes: object):
    """A row of eleven policies, of which the last has the highest true return."""
    truth = {name: 50.0 * (number + 1) for number, name in enumerate(POLICIES)}
    policies = {name: Value(value + 5, 1.0, value, value + 10) for name, value in truth.items()}
    return made_row(task, method, policies=policies, truth=truth, **changes)


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("benchmark")
    random = np.random.default_rng(0)
    for task in TASKS:
        for seed in (0, 1):
            weights = ((0.5, 0.5 - 1e-6, 1e-6),)
            write_row(place, eleven(task, "vlbm", seed=seed, branch_weights=weights))
            write_row(place, eleven(task, "fqe", seed=seed))
    write_row(place, eleven(TASKS[0], "vlm"), made_latents(random, 44, 9.0))
    return place


@pytest.fixture(scope="module")
def figures(directory):
    return {figure.name: figure for figure in draw_figures(read_rows(directory), directory, "dope")}


def test_all_figures_of_the_paper_are_drawn_from_what_the_rows_have(figures):
    (latents,) = (name for name in figures if name.startswith("latents"))
    assert set(figures) == {
        "bars-all-tasks-dope",
        "bars-environments-gym-mujoco",
        "branch-weights-dope",
        "estimates-selection-gym-mujoco",
        "estimates-gym-mujoco-1",
        latents,
    }
    assert latents.startswith("latents-dope-vlm-default-")
    assert "like the paper's Figure 12" in figures[latents].caption
    assert "like the paper's Figure 3" in figures["bars-all-tasks-dope"].caption


def test_every_figure_is_written_in_every_format_and_the_same_twice(figures, tmp_path):
    starts = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}
    for figure in (figure for name, figure in figures.items() if not name.startswith("estimates-g")):
        first = [path.read_bytes() for path in figure.save(tmp_path, FORMATS)]
        second = [path.read_bytes() for path in figure.save(tmp_path, FORMATS)]
        assert first == second
        for content, suffix in zip(first, FORMATS, strict=True):
            assert content.startswith(starts[suffix])
            assert len(content) > 3000


def test_files_carry_no_dates(figures, tmp_path):
    for path in figures["branch-weights-dope"].save(tmp_path, ("svg", "pdf")):
        content = path.read_bytes()
        assert b"dc:date" not in content
        assert b"CreationDate" not in content


def test_figures_drawn_again_are_the_same_files(tmp_path):
    row = eleven("pendulum", "vlbm", branch_weights=((0.5, 0.5),))
    write_row(tmp_path, row, made_latents(np.random.default_rng(0), 33, 3.0))
    first, second = (draw_figures([row], tmp_path, "embedded") for _ in range(2))
    for one, other in zip(first, second, strict=True):
        (path,) = one.save(tmp_path / "first", ("svg",))
        (again,) = other.save(tmp_path / "second", ("svg",))
        assert path.read_bytes() == again.read_bytes()


def test_a_suite_of_one_task_with_unscored_methods_is_drawn_too(tmp_path):
    rows = [made_row(), made_row(method="wpdis", scores=None)]
    names = [figure.name for figure in draw_figures(rows, tmp_path, "embedded")]
    assert names == ["bars-all-tasks-embedded", "estimates-embedded-1"]


def test_without_any_score_there_is_nothing_to_draw(tmp_path):
    assert draw_figures([made_row(scores=None)], tmp_path, "embedded") == []


def test_bars_have_the_papers_means_beside_ours_and_on_their_own():
    rows = [made_row("dope/hopper-medium", rank=0.25)]
    bars = {bar.label: bar for bar in make_bars(rows, ["dope/hopper-medium"], METRICS["rank_correlation"])}
    assert (bars["VLBM"].ours.mean, bars["VLBM"].published.mean) == (0.25, 0.7)
    assert (bars["IS"].ours.mean, bars["IS"].published.mean) == (None, -0.55)
    assert "VLBM, published" not in bars


def test_branch_weights_are_those_of_models_with_several_branches():
    rows = [made_row(branch_weights=((0.25, 0.75), (1.0,))), made_row(seed=1)]
    assert [weights.tolist() for weights in list_weights(rows)] == [[0.25, 0.75]]


def test_an_estimate_that_diverged_does_not_squeeze_the_others(tmp_path):
    huge = {name: Value(1e9, 1.0, 1e9, 1e9) for name in POLICIES}
    rows = [eleven("pendulum", "vlbm"), eleven("pendulum", "fqe")]
    rows[1] = made_row("pendulum", "fqe", policies=huge, truth=rows[0].truth)
    (figure,) = (one for one in draw_figures(rows, tmp_path, "embedded") if one.name.startswith("estimates"))
    assert figure.canvas.axes[0].get_ylim()[1] < 1200


def test_panels_begin_a_new_line_for_every_environment():
    assert split_lines(["ant-random", "hopper-random", "hopper-medium"]) == [
        ["ant-random"],
        ["hopper-random", "hopper-medium"],
    ]
    assert split_lines(["ant-random", "hopper-random"], by_environment=False) == [
        ["ant-random", "hopper-random"]
    ]


def test_the_silhouette_is_one_for_clusters_far_apart_and_unknown_for_a_single_policy():
    latent = np.array([[0.0], [0.0], [1e6], [1e6]])
    apart = Latents(latent, np.array([0, 0, 1, 1]), np.zeros(4))
    assert measure_silhouette(apart) == pytest.approx(1.0)
    assert math.isnan(measure_silhouette(Latents(latent, np.zeros(4, int), np.zeros(4))))


def test_policies_are_coloured_in_the_order_of_their_true_returns():
    row = made_row(truth={"tortoise": 3.0, "hare": 1.0, "snail": 2.0})
    nothing = Latents(np.zeros((3, 1)), np.arange(3), np.array([5.0, 9.0, 7.0]))
    assert rank_policies(row, nothing).tolist() == [2, 0, 1]
    assert rank_policies(made_row(truth=None, scores=None), nothing).tolist() == [0, 2, 1]
