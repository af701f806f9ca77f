"""Policies saved as ONNX."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from vlbm.errors import InputError
from vlbm.policies import Policy, check_fit, load_policy

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

WEIGHT = np.arange(6, dtype=np.float32).reshape(3, 2) - 2


def graph(path, *, batch="batch", observations=3, dtype=np.float32, discrete=False, inputs=1, rank=2):
    """tanh(x W), or the id of the largest of x W."""
    helper, numpy_helper = onnx.helper, onnx.numpy_helper
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes = [helper.make_node("MatMul", ["observation", "weight"], ["raw"])]
    if discrete:
        nodes.append(helper.make_node("ArgMax", ["raw"], ["action"], axis=1, keepdims=0))
        action = helper.make_tensor_value_info("action", onnx.TensorProto.INT64, [batch])
    else:
        nodes.append(helper.make_node("Tanh", ["raw"], ["action"]))
        action = helper.make_tensor_value_info("action", kind, [batch, 2] if rank == 2 else None)
    given = [helper.make_tensor_value_info("observation", kind, [batch, observations][:rank])]
    given += [helper.make_tensor_value_info(f"more_{i}", kind, [batch, 1]) for i in range(inputs - 1)]
    raw = helper.make_tensor_value_info("raw", kind, None)
    weight = numpy_helper.from_array(WEIGHT.astype(dtype), "weight")
    model = helper.make_model(
        helper.make_graph(nodes, "policy", given, [action, raw], [weight]),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("batch", ["batch", None, 1, 4, 6])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_first_output_is_the_action_whatever_the_batch(tmp_path, observation, batch, dtype):
    policy = load_policy(graph(tmp_path / "policy.onnx", batch=batch, dtype=dtype))
    assert isinstance(policy, Policy)
    assert (policy.observation_size, policy.action_size, policy.discrete) == (3, 2, None)
    np.testing.assert_allclose(policy.mean(observation), np.tanh(observation @ WEIGHT), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(policy.sample(observation, key=jax.random.key(0)), policy.mean(observation))


def test_whole_number_outputs_are_ids(tmp_path, observation):
    policy = load_policy(graph(tmp_path / "policy.onnx", discrete=True))
    assert policy.discrete
    assert policy.action_size is None
    np.testing.assert_array_equal(policy.mean(observation), (observation @ WEIGHT).argmax(-1))


def test_an_onnx_file_is_known_by_its_content(tmp_path, observation):
    policy = load_policy(graph(tmp_path / "policy.model"))
    assert policy.mean(observation).shape == (6, 2)


def test_free_sizes_are_unknown_and_fail_clearly_when_run(tmp_path):
    policy = load_policy(graph(tmp_path / "policy.onnx", observations="obs"))
    assert policy.observation_size is None
    check_fit({"policy": policy}, observation_size=17, action_size=2, discrete=False)
    with pytest.raises(
        InputError, match=r"policy.onnx: the policy failed on observations of shape \(5, 17\)"
    ):
        policy.mean(np.zeros((5, 17), np.float32))


@pytest.mark.parametrize("wrong", [{"inputs": 2}, {"rank": 1}, {"dtype": np.int64}])
def test_graphs_that_are_no_policies_are_refused(tmp_path, wrong):
    helper = onnx.helper
    if wrong.get("dtype") is np.int64:  # tanh takes no whole numbers, so this one only passes them on
        value = [
            helper.make_tensor_value_info(name, onnx.TensorProto.INT64, ["batch", 3]) for name in ("a", "b")
        ]
        nodes = [helper.make_node("Identity", ["a"], ["b"])]
        model = helper.make_model(
            helper.make_graph(nodes, "policy", value[:1], value[1:]),
            opset_imports=[helper.make_opsetid("", 17)],
            ir_version=8,
        )
        onnx.save(model, tmp_path / "policy.onnx")
    else:
        graph(tmp_path / "policy.onnx", **wrong)
    with pytest.raises(InputError, match=r"policy.onnx: a policy takes one float input \[batch, obs\]"):
        load_policy(tmp_path / "policy.onnx")


def test_a_damaged_graph_is_refused(tmp_path):
    path = graph(tmp_path / "policy.onnx")
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(InputError, match="not a readable ONNX file"):
        load_policy(path)
