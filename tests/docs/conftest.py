"""Files that the docs speak of, made small, and settings that let a fit take a second."""

from __future__ import annotations

import json
import sys
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from vlbm.estimators.base import Estimator, Evaluator

STEPS, LENGTH = 480, 12
# No setting of a snippet exceeds these here: what is tested is that it runs, not what it says.
LARGEST: dict[str, Any] = {
    "steps": 6, "rounds": 1, "models": 1, "validate_every": 3, "warm_up": 1, "batch": 16, "window": 4,
    "branches": 2, "latents": 4, "members": 2, "resamples": 50, "clone_steps": 10,
}  # fmt: skip
WIDTHS = ("units", "head_units", "g_units")
EPISODES = 4


def reduce_settings(settings: Any) -> Any:
    """The same settings, none of them above what takes a moment."""
    changes: dict[str, Any] = {}
    for field in fields(settings):
        value = getattr(settings, field.name)
        if is_dataclass(value):
            changes[field.name] = reduce_settings(value)
        elif field.name in WIDTHS:
            changes[field.name] = tuple(min(width, 8) for width in value) if np.ndim(value) else min(value, 8)
        elif field.name == "keep":
            changes[field.name] = None
        elif field.name in LARGEST and value is not None:
            changes[field.name] = min(value, LARGEST[field.name])
    return replace(settings, **changes)


@pytest.fixture
def small_settings(monkeypatch):
    """Every `fit` is a small one, and few episodes are imagined; snippets themselves stay as typed."""
    fit, evaluate = Estimator.fit, Evaluator.evaluate

    def fit_little(self, *arguments: Any, **options: Any) -> Any:
        return fit(reduce_settings(self), *arguments, **options)

    def evaluate_little(self, *arguments: Any, **options: Any) -> Any:
        return evaluate(self, *arguments, **{**options, "episodes": EPISODES})

    monkeypatch.setattr(Estimator, "fit", fit_little)
    monkeypatch.setattr(Evaluator, "evaluate", evaluate_little)
    # The devices of this process are settled already.
    monkeypatch.setattr("vlbm.cores.use_cores", lambda count=None: None)


@pytest.fixture
def prepared(tmp_path, monkeypatch) -> Path:
    """A folder with the files that snippets read, as the current one."""
    logs = make_logs()
    write_table(tmp_path / "logs.parquet", logs)
    write_hdf5(tmp_path / "logs.hdf5", logs)
    write_patients(tmp_path / "patients.csv")
    (tmp_path / "my_policies.py").write_text(
        "def cautious(observations):\n    return 0.1 * observations[:, :1]\n"
    )
    (tmp_path / "days").mkdir()
    for seed, day in enumerate(("monday", "tuesday")):
        write_records(tmp_path / "days" / f"{day}.jsonl", seed)
    (tmp_path / "candidates").mkdir()
    for number in range(2):
        write_onnx(tmp_path / "candidates" / f"policy_{number}.onnx", number)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    # Pages have modules of the same names.
    for name in ("rules", "my_policies"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def make_logs() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    last = np.arange(STEPS) % LENGTH == LENGTH - 1
    observations = generator.normal(size=(STEPS, 3))
    return {
        "observations": observations,
        "actions": generator.uniform(-1, 1, size=(STEPS, 1)),
        "rewards": observations[:, 0] + generator.normal(size=STEPS),
        "terminals": last & (generator.random(STEPS) < 0.5),
        "timeouts": last,
        "next_observations": np.roll(observations, -1, axis=0),
    }


def write_table(path: Path, logs: dict[str, np.ndarray]) -> None:
    columns = {f"obs_{index}": logs["observations"][:, index] for index in range(3)}
    columns |= {f"next_obs_{index}": logs["next_observations"][:, index] for index in range(3)}
    columns |= {"action_0": logs["actions"][:, 0], "reward": logs["rewards"]}
    columns |= {"terminated": logs["terminals"], "truncated": logs["timeouts"] & ~logs["terminals"]}
    columns |= {"episode": np.arange(STEPS) // LENGTH, "step": np.arange(STEPS) % LENGTH}
    pq.write_table(pa.table(columns), path)


def write_hdf5(path: Path, logs: dict[str, np.ndarray]) -> None:
    import h5py

    with h5py.File(path, "w") as file:
        for name, values in logs.items():
            file[name] = values


def write_patients(path: Path) -> None:
    generator = np.random.default_rng(1)
    lines = ["stay,age,pulse,dose,outcome,done"]
    for row in range(120):
        age, pulse, dose = generator.uniform(20, 90), generator.uniform(50, 120), generator.integers(3)
        lines.append(f"{row // 6},{age:.1f},{pulse:.1f},{dose},{generator.normal():.3f},{int(row % 6 == 5)}")
    path.write_text("\n".join(lines) + "\n")


def write_records(path: Path, seed: int) -> None:
    generator = np.random.default_rng(seed)
    with path.open("w") as file:
        for row in range(96):
            record = {"obs": generator.normal(size=3).tolist(), "action": [generator.uniform(-1, 1)]}
            record |= {"reward": generator.normal(), "episode": row // 6, "done": row % 6 == 5}
            file.write(json.dumps(record) + "\n")


def write_onnx(path: Path, seed: int) -> None:
    """tanh(x W), from three numbers to one."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    weight = np.random.default_rng(seed).normal(size=(3, 1)).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["observation", "weight"], ["raw"])]
    nodes.append(helper.make_node("Tanh", ["raw"], ["action"]))
    given = helper.make_tensor_value_info("observation", kind, ["batch", 3])
    action = helper.make_tensor_value_info("action", kind, ["batch", 1])
    inside = helper.make_graph(
        nodes, "policy", [given], [action], [onnx.numpy_helper.from_array(weight, "weight")]
    )
    onnx.save(helper.make_model(inside, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
