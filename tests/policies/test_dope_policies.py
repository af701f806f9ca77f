"""Pickles of arrays are read; pickles that ask for more are refused before anything runs."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import jax
import numpy as np
import pytest

from vlbm.errors import InputError
from vlbm.policies import load_policies, load_policy
from vlbm.policies.dope import read_pickled_arrays
from vlbm.policies.weights import policy_to_tensors

DOPE = Path(__file__).resolve().parents[3] / "shared" / "dope"
SIZES = {  # folder: observations, actions, policies
    "ant": (111, 8, 16),
    "halfcheetah": (17, 6, 16),
    "hopper": (11, 3, 16),
    "walker": (17, 6, 16),
    "door": (39, 28, 11),
    "hammer": (46, 26, 11),
    "pen": (45, 24, 11),
    "relocate": (39, 30, 11),
}


def pickled(policy, protocol=4):
    texts = {"nonlinearity": policy.nonlinearity, "output_distribution": policy.distribution}
    return pickle.dumps(policy_to_tensors(policy) | texts, protocol=protocol)


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("module", [b"numpy._core.multiarray", b"numpy.core.multiarray"])
def test_pickles_of_every_protocol_and_numpy_are_read_exactly(make_policy, tmp_path, protocol, module):
    policy = make_policy()
    content = pickled(policy, protocol)
    if protocol < 4:  # later protocols write the length of the name in front
        content = content.replace(b"numpy._core.multiarray", module)
    path = tmp_path / "policy.pkl"
    path.write_bytes(content)
    again = load_policy(path)
    assert jax.tree.structure(again) == jax.tree.structure(policy)
    for ours, theirs in zip(jax.tree.leaves(policy), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize(
    "array",
    [
        np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)),
        np.arange(6, dtype=">f8").reshape(3, 2),
        np.arange(4, dtype=np.int64)[::2],
        np.float32(0.1),
        np.array(3.5),
    ],
)
def test_arrays_of_any_order_come_back_the_same(array, protocol):
    again = read_pickled_arrays(pickle.dumps({"array": array}, protocol=protocol), source="here")["array"]
    np.testing.assert_array_equal(again, array)
    assert again.dtype == array.dtype


def test_pickles_of_python_2_are_read():
    raw = np.array([1.5, -2.0], "<f4").tobytes()
    content = (
        b"\x80\x02}(U\x01acnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        b"(K\x01K\x02\x85cnumpy\ndtype\nU\x02f4K\x00K\x01\x87R(K\x03U\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xff"
        b"K\x00tb\x89U" + bytes([len(raw)]) + raw + b"tbU\x0cnonlinearityU\x04reluu."
    )
    loaded = read_pickled_arrays(content, source="here")
    np.testing.assert_array_equal(loaded["a"], np.array([1.5, -2.0], np.float32))
    assert loaded["nonlinearity"] == "relu"


class Attack:
    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", range(6))
def test_code_in_a_pickle_is_refused_and_does_not_run(tmp_path, protocol):
    mark = tmp_path / "it ran"
    path = tmp_path / "evil.pkl"
    path.write_bytes(pickle.dumps({"fc0/weight": Attack(os.mkdir, str(mark))}, protocol=protocol))
    with pytest.raises(InputError, match=r"evil.pkl: the pickle asks for '(posix|nt).mkdir'"):
        load_policy(path)
    assert not mark.exists()


@pytest.mark.parametrize(
    "function", [eval, getattr, np.load, np.frombuffer, np.ndarray.tofile, np.memmap, pickle.loads]
)
def test_nothing_but_array_reconstruction_is_admitted(function):
    with pytest.raises(InputError, match=r"here: the pickle asks for '[\w.]+'; only arrays are read"):
        read_pickled_arrays(pickle.dumps({"a": Attack(function, "b")}), source="here")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickle.dumps([1, 2]), "no dictionary"),
        (pickle.dumps({1: 2}), "no dictionary"),
        (pickle.dumps({"a": np.arange(3)})[:-20], "not a readable pickle"),
        (pickle.dumps({"a": np.array([None])}, protocol=2), "an array of 'O"),
        (b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x05\x00\x00\x00utf-8\x86R.", "encoding 'utf-8'"),
        (b"\x80\x02cnumpy\ndtype\n}(X\x01\x00\x00\x00aK\x01u\x86b.", "not a readable pickle"),
    ],
)
def test_damaged_and_strange_pickles_are_refused(content, message):
    with pytest.raises(InputError, match=f"here: .*{message}"):
        read_pickled_arrays(content, source="here")


def test_an_array_cannot_claim_more_than_its_bytes():
    content = pickle.dumps({"a": np.zeros((2, 3), np.float32)}, protocol=2)
    with pytest.raises(InputError, match="comes with 24 bytes"):
        read_pickled_arrays(content.replace(b"K\x02K\x03\x86", b"K\x02K\x7f\x86"), source="here")


@pytest.mark.skipif(not DOPE.is_dir(), reason="the DOPE policies are not beside the project")
@pytest.mark.parametrize("folder", SIZES)
def test_the_real_dope_policies_act(folder):
    observations, actions, count = SIZES[folder]
    policies = load_policies(str(DOPE / folder / "*.pkl"))
    assert len(policies) == count
    gym = folder in ("ant", "halfcheetah", "hopper", "walker")
    rows = np.random.default_rng(0).normal(size=(4, observations)).astype(np.float32)
    for policy in policies.values():
        assert (policy.observation_size, policy.action_size) == (observations, actions)
        assert policy.distribution == ("tanh_gaussian" if gym else "gaussian")
        assert policy.nonlinearity == ("relu" if gym else "tanh")
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *policies.values())
    mean = jax.jit(jax.vmap(lambda policy: policy.mean(rows)))(stacked)
    assert mean.shape == (count, 4, actions)
    assert np.isfinite(mean).all()
    if folder in ("hopper", "door"):  # compiling this takes a second for each shape

        def draw(policy, key):
            drawn = policy.sample(rows, key=key)
            return drawn, policy.log_prob(rows, drawn)

        drawn, log_prob = jax.jit(jax.vmap(draw))(stacked, jax.random.split(jax.random.key(0), count))
        assert np.isfinite(drawn).all()
        assert np.isfinite(log_prob).all()
