"""Worlds trained from mapped files: the same to the bit as from memory."""

from __future__ import annotations

import pytest

from systems import Interrupting, bits, linear_logs
from vlbm.data.readers import save_packed
from vlbm.estimators.registry import make_estimator

SMALL = {
    "vlbm": ["branches=2", "latents=3", "units=5", "head_units=6,4", "g_units=6", "window=4", "batch=8"],
    "vlbm, whole episodes": [
        "branches=2",
        "latents=3",
        "units=5",
        "head_units=6,4",
        "g_units=6",
        "window=none",
        "batch=3",
    ],
    "ff": ["members=2", "units=6", "batch=8"],
}
COMMON = ["steps=24", "validate_every=12", "models=1", "keep=none", "learning_rate=0.01", "warm_up=2"]


@pytest.fixture(scope="module")
def logs():
    return linear_logs()


@pytest.fixture(scope="module")
def mapped(logs, tmp_path_factory):
    return save_packed(logs, tmp_path_factory.mktemp("data") / "packed")


def fit(kind: str, episodes, **options):
    estimator = make_estimator(kind.partition(",")[0], settings=[*SMALL[kind], *COMMON])
    return estimator.fit(episodes, seed=3, **options)


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] if "vlbm" in kind else []) for kind in SMALL]
)
def test_training_from_files_and_from_memory_gives_the_same_world(kind, logs, mapped):
    one, other = fit(kind, logs), fit(kind, mapped)
    assert one.histories[0].entries == other.histories[0].entries
    assert bits(one.worlds) == bits(other.worlds)


def test_training_from_ids_is_the_same_too(tmp_path):
    logs = linear_logs(n_actions=3)
    mapped = save_packed(logs, tmp_path / "packed")
    assert bits(fit("ff", logs).worlds) == bits(fit("ff", mapped).worlds)


@pytest.mark.slow
def test_a_run_from_files_is_resumed_to_the_bit_from_files_or_from_memory(logs, mapped, tmp_path):
    whole = fit("vlbm", mapped)
    for index, (before, after) in enumerate(((mapped, mapped), (mapped, logs), (logs, mapped))):
        directory = tmp_path / str(index)
        assert fit("vlbm", before, directory=directory, progress=Interrupting(20)).histories[0].interrupted
        resumed = fit("vlbm", after, directory=directory, resume=True)
        assert bits(resumed.worlds) == bits(whole.worlds)
