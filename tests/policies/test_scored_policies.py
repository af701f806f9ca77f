"""Discrete ONNX and TorchScript policies that give a probability or a logit for every action."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from test_onnx_policy import WEIGHT, graph, onnx

from vlbm.errors import InputError
from vlbm.policies import check_fit, has_log_prob, load_policy

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


class Scores(torch.nn.Module):
    def __init__(self, kind: str):
        super().__init__()
        self.kind = kind
        self.weight = torch.nn.Parameter(torch.tensor(WEIGHT))

    def forward(self, observation: torch.Tensor):
        raw = observation @ self.weight
        if self.kind == "probabilities":
            return torch.softmax(raw, -1)
        if self.kind == "ids":
            return raw.argmax(-1, keepdim=True)
        return raw


def torchscript(path, kind):
    torch.jit.script(Scores(kind)).save(str(path))
    return path


def onnx_graph(path, kind):
    graph(path, discrete=kind == "ids")
    model = onnx.load(path)
    node = model.graph.node[1]
    if kind != "ids":
        node.op_type = {"logits": "Identity", "probabilities": "Softmax"}[kind]
    onnx.save(model, path)
    return path


def load(path, size=2):
    return check_fit({"p": load_policy(path)}, observation_size=3, action_size=size, discrete=True)["p"]


@pytest.mark.parametrize("make", [torchscript, onnx_graph])
@pytest.mark.parametrize("kind", ["logits", "probabilities"])
def test_one_number_for_every_action_is_a_distribution(tmp_path, observation, make, kind):
    policy = load(make(tmp_path / "policy", kind))
    raw = observation @ WEIGHT
    expected = np.exp(raw) / np.exp(raw).sum(-1, keepdims=True)
    assert (policy.discrete, policy.action_size, policy.observation_size in (3, None)) == (True, 2, True)
    assert has_log_prob(policy)
    np.testing.assert_array_equal(policy.mean(observation), raw.argmax(-1))
    for action in (0, 1):
        found = np.exp(policy.log_prob(observation, np.full(6, action)))
        np.testing.assert_allclose(found, expected[:, action], rtol=1e-4)
    many = np.repeat(observation[:1], 4000, axis=0)
    drawn = policy.sample(many, key=jax.random.key(0))
    assert drawn.mean() == pytest.approx(expected[0, 1], abs=0.03)
    np.testing.assert_array_equal(drawn, policy.sample(many, key=jax.random.key(0)))


@pytest.mark.parametrize("make", [torchscript, onnx_graph])
def test_whole_numbers_are_ids_without_a_density(tmp_path, observation, make):
    policy = load(make(tmp_path / "policy", "ids"))
    assert not has_log_prob(policy)
    np.testing.assert_array_equal(np.ravel(policy.mean(observation)), (observation @ WEIGHT).argmax(-1))


@pytest.mark.parametrize("make", [torchscript, onnx_graph])
def test_where_actions_are_vectors_the_same_numbers_are_one(tmp_path, observation, make):
    given = {"p": load_policy(make(tmp_path / "policy", "logits"))}
    policy = check_fit(given, observation_size=3, action_size=2, discrete=False)["p"]
    assert not has_log_prob(policy)
    np.testing.assert_allclose(policy.mean(observation), observation @ WEIGHT, rtol=1e-5)


def test_an_onnx_file_with_another_number_of_actions_is_refused(tmp_path):
    with pytest.raises(InputError, match="gives 2 discrete actions, the data have 5"):
        load(onnx_graph(tmp_path / "policy", "logits"), size=5)


def test_an_action_that_is_never_taken_has_a_logit_of_minus_infinity(tmp_path, observation):
    class Masked(torch.nn.Module):
        def forward(self, observation: torch.Tensor):
            score = observation[:, :2].clone()
            score[:, 1] = -float("inf")
            return score

    torch.jit.trace(Masked(), torch.zeros(2, 3)).save(str(tmp_path / "policy.pt"))
    policy = load(tmp_path / "policy.pt")
    np.testing.assert_array_equal(policy.log_prob(observation, np.zeros(6, int)), 0.0)
    np.testing.assert_array_equal(policy.log_prob(observation, np.ones(6, int)), -np.inf)


def test_numbers_that_are_none_are_refused(tmp_path, observation):
    torch.jit.script(Scores("logits")).save(str(tmp_path / "policy.pt"))
    policy = load(tmp_path / "policy.pt")
    with pytest.raises(InputError, match="policy 'p': gave probabilities or logits that are not finite"):
        policy.mean(np.full_like(observation, np.nan))
