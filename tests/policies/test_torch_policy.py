"""Policies saved as TorchScript."""

from __future__ import annotations

import zipfile

import jax
import numpy as np
import pytest

from vlbm.errors import InputError
from vlbm.policies import Policy, load_policy

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


class Noisy(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)

    def forward(self, observation: torch.Tensor):
        return torch.tanh(self.layer(observation)), observation.sum(-1)

    @torch.jit.export
    def sample(self, observation: torch.Tensor):
        mean = self.layer(observation)
        return torch.tanh(mean + torch.randn_like(mean))


class Textual(torch.nn.Module):
    def forward(self, observation: torch.Tensor):
        return "left"


def saved(module, path):
    torch.jit.script(module).save(str(path))
    return path


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_forward_is_the_mean(tmp_path, observation, dtype):
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)).to(dtype)
    policy = load_policy(saved(module, tmp_path / "policy.pt"))
    assert isinstance(policy, Policy)
    expected = module(torch.tensor(observation, dtype=dtype)).detach().numpy()
    np.testing.assert_allclose(policy.mean(observation), expected, rtol=1e-6)
    np.testing.assert_array_equal(policy.sample(observation, key=jax.random.key(0)), policy.mean(observation))


def test_a_traced_module_is_read_too(tmp_path, observation):
    module = torch.nn.Linear(3, 2)
    torch.jit.trace(module, torch.zeros(1, 3)).save(str(tmp_path / "policy.pt"))
    expected = module(torch.tensor(observation)).detach().numpy()
    np.testing.assert_allclose(load_policy(tmp_path / "policy.pt").mean(observation), expected, rtol=1e-6)


def test_an_exported_sample_is_seeded_by_the_key_and_disturbs_nobody(tmp_path, observation):
    module = Noisy()
    policy = load_policy(saved(module, tmp_path / "policy.pt"))
    expected = torch.tanh(module.layer(torch.tensor(observation))).detach().numpy()
    np.testing.assert_allclose(policy.mean(observation), expected, rtol=1e-6)
    torch.manual_seed(7)
    before = torch.random.get_rng_state()
    first, again, other = (policy.sample(observation, key=jax.random.key(seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 0.01
    assert torch.equal(before, torch.random.get_rng_state())


def test_wrong_observations_and_outputs_are_said_clearly(tmp_path, observation):
    policy = load_policy(saved(Noisy(), tmp_path / "policy.pt"))
    with pytest.raises(InputError, match=r"policy.pt: the policy failed on observations of shape \(5, 17\)"):
        policy.mean(np.zeros((5, 17), np.float32))
    with pytest.raises(InputError, match="gave a str, not a tensor"):
        load_policy(saved(Textual(), tmp_path / "text.pt")).mean(observation)


def test_bare_weights_of_torch_are_refused_with_the_remedy(tmp_path):
    torch.save(Noisy().state_dict(), tmp_path / "weights.pt")
    with pytest.raises(InputError, match=r"weights.pt: written by torch.save.*torch.jit.script"):
        load_policy(tmp_path / "weights.pt")


def test_a_damaged_script_is_refused(tmp_path):
    path = saved(Noisy(), tmp_path / "policy.pt")
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, b"nonsense" if name.endswith("data.pkl") else content)
    with pytest.raises(InputError, match="not a readable TorchScript file"):
        load_policy(path)
