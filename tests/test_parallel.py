"""Work on several devices. Their number is settled when JAX starts, so two of them take another process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from threading import Lock
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vlbm import parallel
from vlbm.cores import use_cores
from vlbm.errors import InputError, TrainingDivergedError
from vlbm.parallel import (
    Devices,
    count_shards,
    make_sharding,
    map_shards,
    put_on,
    run_parallel,
    split_batch,
    uncommit,
)

HERE = Path(__file__).parent


def on_one_and_all(work: str, *, devices: int = 2) -> dict[str, Any]:
    """The same work done with one device and with all of them."""
    environment = {**os.environ, "JAX_NUM_CPU_DEVICES": str(devices), "VLBM_CORES": str(devices)}
    done = subprocess.run(
        [sys.executable, HERE / "split_work.py", work],
        env={**environment, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


# Training


@pytest.fixture(scope="module")
def ensembles() -> dict[str, Any]:
    return on_one_and_all("ensembles")


@pytest.fixture(scope="module")
def paper() -> dict[str, Any]:
    return on_one_and_all("paper")


def check_same_model(found: dict[str, Any], *, but: tuple[str, ...] = (), close: float = 1e-4) -> None:
    """Losses and weights, which did change, are the same from batches that were split and from whole ones."""
    whole, parts = found["one"]["trained"], found["all"]["trained"]
    assert (whole["shards"], parts["shards"]) == ([1], [2])
    for term, tolerance in (("loss", 1e-4), ("validation", close)):
        losses = [[entry[term] for entry in run["entries"][0]] for run in (whole, parts)]
        np.testing.assert_allclose(*losses, rtol=tolerance)
        assert losses[0][0] != losses[0][1]
    assert whole["weights"].keys() == parts["weights"].keys()
    for name, weight in whole["weights"].items():
        if not name.endswith(but):
            np.testing.assert_allclose(parts["weights"][name], weight, rtol=1e-3, atol=1e-4, err_msg=name)


def test_a_split_training_gives_the_model_of_a_whole_one(ensembles):
    check_same_model(ensembles)


def test_so_does_one_with_batch_normalisation(paper):
    # A bias before normalisation changes nothing: its gradient is rounding, which Adam takes for a direction,
    # and running means follow a little later.
    check_same_model(paper, but=(".hidden.bias", ".norm.mean"), close=0.01)


def test_every_device_does_its_share_of_a_split_training_step(paper):
    # Half of it, but for what both do: drawing and the optimiser, which count in networks as small as these.
    assert 0.45 < paper["all"]["flops"] / paper["one"]["flops"] < 0.7


def test_models_trained_side_by_side_are_those_trained_one_after_another(ensembles):
    one_by_one, together = (ensembles[devices]["several"] for devices in ("one", "all"))
    assert len(one_by_one["entries"]) == 3
    assert together == one_by_one
    assert together["shards"] == [1]


@pytest.mark.parametrize("devices", ["one", "all"])
def test_mapped_data_give_the_losses_of_data_in_memory(ensembles, devices):
    mapped, in_memory = (ensembles[devices][data]["entries"] for data in ("mapped", "trained"))
    assert [entry["loss"] for entry in mapped[0]] == pytest.approx(
        [entry["loss"] for entry in in_memory[0]], rel=1e-4
    )


# Roll-outs


@pytest.fixture(scope="module")
def imagined() -> dict[str, Any]:
    return on_one_and_all("imagined")


@pytest.mark.parametrize("actions", ["mean", "sample"])
def test_imagined_episodes_do_not_depend_on_the_number_of_devices(imagined, actions):
    for whole, parts in zip(imagined["one"][actions], imagined["all"][actions], strict=True):
        for what in ("observation", "action"):
            np.testing.assert_allclose(parts[what], whole[what], rtol=1e-4, atol=1e-4)


def test_devices_do_not_share_their_luck_and_policies_do(imagined):
    action = np.array([each["action"] for each in imagined["all"]["sample"]])  # [policies, episodes, steps]
    first, second = np.split(action[0], 2)
    assert not np.isclose(first, second).any()
    np.testing.assert_allclose(action[1] - action[0], 2.0, atol=1e-5)


# Critics


def test_policies_whose_critics_are_on_two_devices_have_the_values_they_have_on_one():
    found = on_one_and_all("critics")
    whole, parts = (np.array(found[devices]["values"]) for devices in ("one", "all"))
    np.testing.assert_allclose(whole, parts, rtol=2e-3)
    assert np.ptp(whole, axis=0).min() > 0


# Parts


def test_with_one_device_nothing_is_split_or_moved():
    batch = jnp.arange(6.0)
    assert count_shards(640) == 1
    assert map_shards(jnp.sum, 1) is jnp.sum
    assert split_batch(batch, 1) is batch
    assert make_sharding(1) is None
    assert put_on(batch, None) is batch


@pytest.mark.parametrize(("batch", "shards"), [(8, 4), (6, 3), (7, 1), (2, 2)])
def test_a_batch_is_split_evenly_over_as_many_devices_as_it_can_be(monkeypatch, batch, shards):
    monkeypatch.setattr(parallel.jax, "local_devices", lambda: jax.devices()[:1] * 4)
    assert count_shards(batch) == shards


def test_what_is_released_has_the_same_numbers_and_keeps_what_is_no_array():
    tree = {"array": np.arange(3.0), "name": "point", "nothing": None}
    free = uncommit(tree)
    assert isinstance(free["array"], jax.Array)
    np.testing.assert_array_equal(free["array"], tree["array"])
    assert (free["name"], free["nothing"]) == ("point", None)


# Who has a device when, and what stops everybody


@pytest.fixture
def two_devices(monkeypatch):
    """The one device there is, lent twice."""
    device = jax.devices()[0]
    monkeypatch.setattr(parallel.jax, "local_devices", lambda: [device, device])


class Crew:
    """Pieces of work of five stretches each; remembers how many were at work at once."""

    def __init__(self):
        self.at_work, self.most, self.lock = 0, 0, Lock()

    def job(self, name: str, *, fails_at: int | None = None):
        def work(devices: Devices) -> tuple[str, int]:
            stretches = 0
            try:
                for stretch in range(5):
                    with devices.acquire():
                        if stretch == fails_at:
                            raise TrainingDivergedError(f"{name} diverged")
                        with self.lock:
                            self.at_work += 1
                            self.most = max(self.most, self.at_work)
                        time.sleep(0.01)
                        with self.lock:
                            self.at_work -= 1
                        stretches += 1
            except KeyboardInterrupt:
                devices.stop()
            return name, stretches

        return work


def test_three_pieces_keep_two_devices_busy_and_come_back_in_order(two_devices):
    crew = Crew()
    results = run_parallel([crew.job(name) for name in "abc"], batch=1)
    assert results == [("a", 5), ("b", 5), ("c", 5)]
    assert crew.most == 2


def test_with_one_device_one_piece_comes_after_the_other():
    crew = Crew()
    assert run_parallel([crew.job(name) for name in "ab"], batch=1) == [("a", 5), ("b", 5)]
    assert crew.most == 1


@pytest.mark.parametrize(("batch", "shards"), [(8, 2), (7, 1)])
def test_a_single_piece_has_its_batches_split_over_all_devices(two_devices, batch, shards):
    assert run_parallel([lambda devices: devices.shards], batch=batch) == [shards]


def pressed(devices: Devices) -> tuple[str, int]:
    with devices.acquire():
        devices.stop()
    return "pressed", 1


def test_an_interruption_heard_by_one_stops_all(two_devices):
    results = run_parallel([pressed, Crew().job("long")], batch=1)
    assert results[0] == ("pressed", 1)
    assert results[1][1] < 5


def test_after_an_interruption_nothing_else_is_begun():
    assert run_parallel([pressed, Crew().job("never")], batch=1) == [("pressed", 1)]


def test_ctrl_c_in_the_main_thread_stops_all_and_keeps_what_they_have(two_devices, monkeypatch):
    def interrupted(futures, **options):
        time.sleep(0.02)
        raise KeyboardInterrupt

    monkeypatch.setattr(parallel, "wait", interrupted)
    results = run_parallel([Crew().job(name) for name in "ab"], batch=1)
    assert [name for name, _ in results] == ["a", "b"]
    assert all(stretches < 5 for _, stretches in results)


def test_a_failure_is_raised_and_stops_the_others(two_devices):
    crew, slow = Crew(), []

    def patient(devices: Devices) -> None:
        try:
            for _ in range(100):
                with devices.acquire():
                    time.sleep(0.01)
                    slow.append(1)
        except KeyboardInterrupt:
            return

    with pytest.raises(TrainingDivergedError, match="it diverged"):
        run_parallel([crew.job("it", fails_at=2), patient], batch=1)
    assert len(slow) < 100


# Cores


def test_a_number_of_cores_that_is_none_is_refused_by_name(monkeypatch):
    monkeypatch.delenv("JAX_NUM_CPU_DEVICES", raising=False)
    monkeypatch.setenv("VLBM_CORES", "many")
    with pytest.raises(InputError, match="VLBM_CORES=many"):
        use_cores()


def test_cores_become_devices_and_no_other_flag_is_set(monkeypatch):
    monkeypatch.delitem(sys.modules, "jax")
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "1")
    before = dict(os.environ)
    use_cores(2)
    assert dict(os.environ) == {**before, "JAX_NUM_CPU_DEVICES": "2"}


def test_cores_cannot_be_changed_once_jax_has_computed():
    jnp.zeros(1).block_until_ready()
    with pytest.raises(InputError, match="already computed"):
        use_cores(2)
