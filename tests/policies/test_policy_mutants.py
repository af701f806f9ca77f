"""Mutants of policy files: each acts, or is refused with one clear error."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from fuzzing import count, failures, fuzz
from vlbm.policies import MLPPolicy, save_policy
from vlbm.policies.weights import policy_to_tensors

FEW, MANY = 40, 700


def weights(make_policy, path: Path) -> str:
    save_policy(make_policy(hidden=(3,)), path)
    return "act_on_vectors"


def dope(make_policy, path: Path) -> str:
    policy: MLPPolicy = make_policy(hidden=(3,))
    texts = {"nonlinearity": policy.nonlinearity, "output_distribution": policy.distribution}
    path.write_bytes(pickle.dumps(policy_to_tensors(policy) | texts, protocol=2))
    return "act_on_vectors"


def onnx(make_policy, path: Path) -> str:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    from test_onnx_policy import graph

    graph(path, batch=4)
    return "act_on_choices"


def torchscript(make_policy, path: Path) -> str:
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    torch.jit.trace(module, torch.zeros(2, 3)).save(str(path))
    return "act_on_choices"


def sb3(make_policy, path: Path) -> str:
    algorithms = pytest.importorskip("stable_baselines3")
    algorithms.PPO("MlpPolicy", "CartPole-v1", policy_kwargs={"net_arch": [4]}, device="cpu").save(path)
    return "act_on_choices"


KINDS = {
    "policy.npz": weights,
    "policy.safetensors": weights,
    "policy.pkl": dope,
    "policy.onnx": onnx,
    "policy.pt": torchscript,
    "policy.zip": sb3,
}

WITH_TORCH = ("policy.pt", "policy.zip")  # every process that reads them takes seconds to start


def check_mutants(make_policy, folder: Path, name: str, numbers: range) -> None:
    loader = KINDS[name](make_policy, folder / name)
    outcomes = fuzz(f"fuzz_loaders:{loader}", folder / name, numbers)
    print(name, count(outcomes))
    assert failures(outcomes) == []
    assert {"loaded", "refused"} <= count(outcomes).keys()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", [name for name in KINDS if name not in WITH_TORCH])
def test_a_changed_policy_acts_or_is_refused(make_policy, tmp_path, name):
    check_mutants(make_policy, tmp_path, name, range(FEW))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", KINDS)
def test_many_changed_policies_act_or_are_refused(make_policy, tmp_path, name):
    check_mutants(make_policy, tmp_path, name, range(FEW if name not in WITH_TORCH else 0, FEW + MANY))
