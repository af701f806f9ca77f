"""Benchmarks on a Ray cluster: the same table as on one machine, though nodes die."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from made_cells import Known, known_tasks, made_plan, made_question, read_diary
from vlbm.errors import InputError
from vlbm.estimators.world_models.feedforward import FeedForward
from vlbm.experiments.executors.base import Failure
from vlbm.experiments.executors.local import LocalExecutor
from vlbm.experiments.executors.ray import RETRIES, RayExecutor
from vlbm.experiments.row_store import RowStore
from vlbm.experiments.rows import read_rows
from vlbm.experiments.run import run_cells

QUESTION = made_question()


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"--executor ray needs the extra 'ray': pip install"):
        RayExecutor()


@pytest.fixture
def ray(monkeypatch):
    """Ray, whose workers find what tests define."""
    found = pytest.importorskip("ray")
    places = [str(Path(__file__).resolve().parents[1]), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(places))
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    yield found
    found.shutdown()


def test_a_cluster_of_one_says_what_this_process_says(ray, tmp_path, monkeypatch):
    put, shipped = ray.put, []
    monkeypatch.setattr(ray, "put", lambda question: shipped.append(question) or put(question))
    cells = made_plan(right=Known(diary=str(tmp_path / "diary")), bad=Known(fault="input"))
    found = {
        (cell.method, cell.seed): outcome
        for cell, outcome in RayExecutor(2).run(cells, lambda task: QUESTION)
    }
    assert not ray.is_initialized()  # what it has started it ends
    assert shipped == [QUESTION]  # once for all four cells
    assert sorted(read_diary(tmp_path / "diary")) == ["fit 0", "fit 1"]
    for seed in (0, 1):
        assert found["right", seed].estimates.values.tolist() == [seed, seed + 1, seed + 4]
        assert found["bad", seed].reason == "broken on purpose"


def run(directory: Path, cells, executor) -> None:
    store = RowStore(directory, known_tasks(["one", "two"], QUESTION))
    for _ in run_cells(cells, lambda task: QUESTION, store, executor):
        pass


@pytest.mark.slow
def test_the_table_is_that_of_one_machine_though_a_node_is_killed(ray, tmp_path):
    from ray.cluster_utils import Cluster

    slow = Known(diary=str(tmp_path / "diary"), seconds=3.0)
    learning = FeedForward(units=(4,), members=2, steps=4, validate_every=2, batch=8)
    cells = [
        *made_plan(("one", "two"), (0, 1, 2), slow=slow),
        *made_plan(("one",), (0, 1), learning=learning),
    ]
    run(
        tmp_path / "local", [*made_plan(("one", "two"), (0, 1, 2), slow=Known()), *cells[6:]], LocalExecutor()
    )
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    nodes = [cluster.add_node(num_cpus=1) for _ in range(3)]
    ray.init(address=cluster.address, log_to_driver=False)

    def kill() -> None:
        until = time.monotonic() + 120
        while len(read_diary(tmp_path / "diary")) < 3 and time.monotonic() < until:
            time.sleep(0.1)
        cluster.remove_node(nodes[0], allow_graceful=False)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        run(tmp_path / "cluster", cells, RayExecutor())
        killer.join()
    finally:
        ray.shutdown()
        cluster.shutdown()
    fits = Counter(read_diary(tmp_path / "diary"))
    assert sum(fits.values()) > 6  # one was lost with its node, and begun again
    local, there = (
        {(row.task, row.seed, row.method): row for row in read_rows(tmp_path / name)}
        for name in ("local", "cluster")
    )
    assert there.keys() == local.keys()
    for name, row in local.items():
        # Cells have other numbers of devices there, which sum in another order.
        for policy, value in row.policies.items():
            assert there[name].policies[policy].value == pytest.approx(value.value, rel=1e-5, abs=1e-6)


@pytest.mark.slow
def test_a_cell_that_kills_every_process_fails_alone(ray, tmp_path):
    diary = tmp_path / "diary"
    cells = made_plan(seeds=(0,), dying=Known(fault="death", diary=str(diary)), right=Known())
    found = {cell.method: outcome for cell, outcome in RayExecutor().run(cells, lambda task: QUESTION)}
    assert isinstance(found["dying"], Failure)
    assert f"lost on the cluster, after {RETRIES} retries" in found["dying"].reason
    assert len(read_diary(diary)) == RETRIES + 1
    assert not isinstance(found["right"], Failure)
