"""Work split over devices. Their number is settled when JAX starts, so two of them take another process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from vlbm import cores
from vlbm.cores import use_cores
from vlbm.devices import everywhere, in_lots, parts_for, share, split
from vlbm.errors import InputError

HERE = Path(__file__).parent


def whole_and_split(work: str, *, devices: int = 2) -> dict[str, Any]:
    """The same work done whole and split over two devices."""
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


@pytest.fixture(scope="module")
def both() -> dict[str, Any]:
    return whole_and_split("feed forward")


def test_there_are_as_many_devices_as_asked_for_and_a_batch_is_split_over_them(both):
    assert (both["devices"], both["parts"]) == (2, 2)
    assert both["used"] == [1, 2]


def check_losses(whole: list[float], parts: list[float]) -> None:
    assert whole == pytest.approx(parts, rel=1e-3)
    assert whole[0] != whole[1]


def test_a_split_training_has_the_losses_of_a_whole_one(both):
    check_losses(*both["ff"])


@pytest.mark.slow
def test_so_does_one_with_batch_normalisation():
    check_losses(*whole_and_split("branching")["branching"])


def test_models_trained_side_by_side_are_those_trained_one_after_another(both):
    one_by_one, side_by_side = both["several"]
    assert len(one_by_one) == 3
    assert one_by_one == side_by_side


def test_mapped_data_give_the_losses_of_data_in_memory(both):
    assert both["mapped"] == both["ff"]


def test_episodes_that_go_on_alone_go_on_as_they_would_have_in_company(both):
    for together, alone in both["kept"]:
        np.testing.assert_allclose(alone, together, rtol=1e-5, atol=1e-6)
        assert np.std(together) > 0


def test_split_imagined_episodes_keep_their_order_and_their_values(both):
    whole, parts = (np.array(values) for values in both["imagined"])
    # Weights differ by rounding; episodes that changed places would differ by whole steps.
    np.testing.assert_allclose(whole, parts, atol=0.05)
    assert np.ptp(whole[0].reshape(8, -1, 2)[:, 0, 0]) > 6


def test_devices_do_not_share_their_luck(both):
    action = np.array(both["sampled"][1])  # [steps, policies, episodes, 1]
    first, second = np.split(action[:, 0], 2, axis=1)
    assert not np.isclose(first, second).any()
    # Policies do: they differ by what they do alone.
    np.testing.assert_allclose(action[:, 1] - action[:, 0], 2.0, atol=1e-5)


@pytest.mark.parametrize("work", ["critics", "visited critics"])
def test_policies_whose_critics_are_on_two_devices_have_the_values_they_have_on_one(work):
    found = whole_and_split(work)
    assert found["lots"] == [[1, 0], [2, 1]]  # of three policies, and empty seats
    whole, parts = (np.array(values) for values in found["critics"])
    np.testing.assert_allclose(whole, parts, rtol=2e-3)
    assert np.ptp(whole, axis=0).min() > 0


@pytest.mark.parametrize("devices", [2, 3])
def test_guests_make_every_step_once_and_in_order_and_devices_are_equally_long_at_it(devices):
    found = whole_and_split("guests", devices=devices)
    value, where = np.zeros(len(found["made"])), np.array(found["where"])
    for told in np.transpose(found["answers"]):
        value = 0.9 * value + told
    np.testing.assert_allclose(found["value"], value, rtol=1e-5)
    assert set(found["made"]) == {50}
    # Every fourth is a guest, and is everywhere; the others stay.
    assert [len(set(steps)) for steps in where] == [1, 1, 1, devices] * (devices - 1) + [1, 1, 1]
    work = np.bincount(where.reshape(-1), minlength=devices)
    assert np.ptp(work) <= 4  # of some two hundred: steps are not divided


def test_with_one_device_nothing_is_split():
    assert parts_for(640) == 1
    batch = jnp.arange(6.0)
    assert split(lambda x: everywhere(share(x, axis=0)).sum(), 1)(batch) == 15
    assert in_lots(lambda fixed, lot: fixed * lot, 1)(2.0, batch[None]).tolist() == [[0, 2, 4, 6, 8, 10]]


def test_a_number_of_cores_that_is_none_is_refused_by_name(monkeypatch):
    monkeypatch.delenv("JAX_NUM_CPU_DEVICES", raising=False)
    monkeypatch.setenv("VLBM_CORES", "many")
    with pytest.raises(InputError, match="VLBM_CORES=many"):
        use_cores()


@pytest.mark.parametrize(
    ("release", "count", "told"),
    [("0.10.2", 2, True), ("0.10.2", 1, False), ("0.99.0", 2, False)],
)
def test_only_releases_they_were_tried_with_are_given_flags_and_the_users_stay(
    monkeypatch, release, count, told
):
    monkeypatch.delitem(sys.modules, "jax")
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "1")
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=true")
    monkeypatch.setattr(cores, "version", lambda name: release)
    use_cores(count)
    assert os.environ["JAX_NUM_CPU_DEVICES"] == str(count)
    flags = os.environ["XLA_FLAGS"].split()
    assert flags[0] == "--xla_cpu_multi_thread_eigen=true"
    assert flags[1:] == ([cores.FLAGS[0], cores.FLAGS[2]] if told else [])


def test_cores_cannot_be_changed_once_jax_has_computed():
    jnp.zeros(1).block_until_ready()
    with pytest.raises(InputError, match="already computed"):
        use_cores(2)
