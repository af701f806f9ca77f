"""Weights as .npz and .safetensors."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from safetensors.numpy import save_file

from vlbm.errors import InputError
from vlbm.policies import FunctionPolicy, load_policy, save_policy
from vlbm.policies.weights import policy_to_tensors

ENDINGS = (".npz", ".safetensors")
TEXTS = {"nonlinearity": "relu", "output_distribution": "tanh_gaussian"}
VARIETY = {
    "squashed": {},
    "linear": {"hidden": ()},
    "scaled": {"action_scale": [2.0, 0.1], "action_offset": 1 / 3},
    "bounded": {"distribution": "gaussian", "action_low": -0.3, "action_high": [1.0, np.inf]},
    "spread clipped": {"log_std_min": -20.0, "log_std_max": 2.0, "nonlinearity": "tanh"},
    "deterministic": {"spread": False},
    "categorical": {"spread": False, "distribution": "categorical"},
    "greedy": {"spread": False, "distribution": "greedy", "exploration": 0.05},
}


def write(path, tensors, texts=TEXTS):
    if path.suffix == ".npz":
        np.savez(path, **tensors, **{name: np.array(text) for name, text in texts.items()})
    else:
        save_file(tensors, path, metadata=texts)
    return path


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("settings", VARIETY.values(), ids=VARIETY.keys())
def test_a_saved_policy_comes_back_bit_for_bit(make_policy, tmp_path, ending, settings):
    policy = make_policy(**settings)
    path = tmp_path / "new folder" / f"policy{ending}"
    save_policy(policy, path)
    again = load_policy(path)
    assert jax.tree.structure(again) == jax.tree.structure(policy)
    for ours, theirs in zip(jax.tree.leaves(policy), jax.tree.leaves(again), strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)
    assert [file.name for file in path.parent.iterdir()] == [path.name]  # no partial file is left


@pytest.mark.parametrize("ending", ENDINGS)
def test_defaults_are_not_written(make_policy, tmp_path, ending):
    assert {name.partition("/")[0] for name in policy_to_tensors(make_policy())} == {
        "fc0",
        "fc1",
        "last_fc",
        "last_fc_log_std",
    }


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("fc1/weight", np.zeros((5, 9), np.float32), r"'fc1/weight' has shape \(5, 9\), expected \(any, 8\)"),
        ("fc0/weight", np.zeros(8, np.float32), r"'fc0/weight' has shape \(8,\)"),
        ("fc0/bias", np.zeros(7, np.float32), r"'fc0/bias' has shape \(7,\), expected \(8,\)"),
        ("last_fc/bias", None, "'last_fc/bias' is missing"),
        ("last_fc_log_std/weight", np.zeros((3, 5), np.float32), "last_fc_log_std/"),
        ("fc3/weight", np.zeros((5, 5), np.float32), "'fc3/weight' is not part of the layout"),
        ("observation_mean", np.zeros(3, np.float32), "'observation_mean' is not part of the layout"),
        ("fc0/bias", np.full(8, np.nan, np.float32), "'fc0/bias' holds values that are not finite"),
        ("fc0/weight", np.zeros((0, 3), np.float32), "'fc0/weight' is empty"),
        ("fc0/bias", np.zeros(8, bool), "'fc0/bias' does not hold numbers"),
        ("action_scale", np.ones(3, np.float32), "'action_scale' has shape"),
        ("action_scale", np.zeros(2, np.float32), "'action_scale' holds a value"),
        ("exploration", np.full((), 1.5, np.float32), "'exploration' holds a value"),
        ("log_std_min", np.zeros(2, np.float32), "'log_std_min' has shape"),
    ],
)
def test_a_wrong_tensor_is_named_with_its_file(make_policy, tmp_path, ending, name, value, message):
    tensors = policy_to_tensors(make_policy())
    tensors.pop(name, None)
    if value is not None:
        tensors[name] = value
    path = write(tmp_path / f"broken{ending}", tensors)
    with pytest.raises(InputError, match=f"broken{ending}: .*{message}"):
        load_policy(path)


@pytest.mark.parametrize("ending", ENDINGS)
def test_missing_and_unknown_texts_are_named(make_policy, tmp_path, ending):
    tensors = policy_to_tensors(make_policy())
    with pytest.raises(InputError, match="'nonlinearity' is missing"):
        load_policy(write(tmp_path / f"a{ending}", tensors, {"output_distribution": "gaussian"}))
    with pytest.raises(InputError, match=f"b{ending}: nonlinearity 'cubic' is not known"):
        load_policy(write(tmp_path / f"b{ending}", tensors, TEXTS | {"nonlinearity": "cubic"}))


def test_double_precision_weights_and_foreign_notes_are_read(make_policy, tmp_path, observation):
    policy = make_policy()
    tensors = {name: value.astype(np.float64) for name, value in policy_to_tensors(policy).items()}
    again = load_policy(write(tmp_path / "policy.safetensors", tensors, TEXTS | {"format": "pt"}))
    np.testing.assert_array_equal(again.mean(observation), policy.mean(observation))


def test_arrays_of_objects_are_not_unpickled(tmp_path):
    path = tmp_path / "objects.npz"
    np.savez(path, nonlinearity=np.array([print], dtype=object))
    with pytest.raises(InputError, match=r"not a readable .npz of plain arrays"):
        load_policy(path)


def test_only_perceptrons_are_saved_and_only_in_known_formats(make_policy, tmp_path):
    with pytest.raises(InputError, match="only an MLPPolicy"):
        save_policy(FunctionPolicy(lambda rows: rows), tmp_path / "policy.npz")
    with pytest.raises(InputError, match=r"saved as .safetensors or .npz"):
        save_policy(make_policy(), tmp_path / "policy.pkl")


def test_texts_and_single_numbers_beside_the_weights_are_left_aside_with_a_note(make_policy, tmp_path):
    policy = make_policy()
    remarks = {"task": np.array("hopper"), "mean_return": np.float32(3.0)}
    path = write(tmp_path / "policy.npz", {**policy_to_tensors(policy), **remarks})
    with pytest.warns(UserWarning, match="mean_return, task are no weights and were left aside"):
        again = load_policy(path)
    np.testing.assert_array_equal(again.head.weight, policy.head.weight)
