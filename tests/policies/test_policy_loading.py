"""Finding, naming and telling apart the files of policies."""

from __future__ import annotations

import sys
import zipfile

import pytest

from vlbm.errors import InputError
from vlbm.policies import load_policies, load_policy, save_policy


@pytest.fixture
def save(make_policy, tmp_path):
    def save(name):
        save_policy(make_policy(), tmp_path / name)
        return str(tmp_path / name)

    return save


def test_patterns_expand_in_natural_order_and_keep_the_order_given(save, tmp_path):
    for name in ("policy_10.npz", "policy_2.npz", "policy_1.safetensors", "z.npz"):
        save(name)
    policies = load_policies(str(tmp_path / "z.npz"), str(tmp_path / "policy_*"))
    assert list(policies) == ["z", "policy_1", "policy_2", "policy_10"]


def test_clashing_names_get_their_folders_in_front(save):
    files = [save(name) for name in ("a/policy.npz", "b/policy.npz", "b/other.npz")]
    assert list(load_policies(*files)) == ["a/policy", "b/policy", "other"]
    files = [save(name) for name in ("x/a/policy.npz", "y/a/policy.npz", "b/policy.npz")]
    assert list(load_policies(*files)) == ["x/a/policy", "y/a/policy", "b/policy"]


def test_files_that_differ_in_their_ending_keep_it(save):
    files = [save(name) for name in ("policy.npz", "policy.safetensors", "last.npz")]
    assert list(load_policies(*files)) == ["policy.npz", "policy.safetensors", "last"]


def test_functions_are_named_after_themselves(tmp_path, monkeypatch):
    for name in ("first_agents_of_test", "second_agents_of_test"):
        (tmp_path / f"{name}.py").write_text("def act(rows): return rows\ndef other(rows): return rows\n")
    monkeypatch.chdir(tmp_path)
    given = ["first_agents_of_test:act", "second_agents_of_test:act", "first_agents_of_test:other"]
    assert list(load_policies(*given)) == [*given[:2], "other"]
    with pytest.raises(InputError, match="given twice"):
        load_policies(given[0], given[0])


def test_the_same_file_twice_is_refused(save, tmp_path, monkeypatch):
    file = save("policy.npz")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"policy.npz: given twice"):
        load_policies(file, "policy.npz")
    with pytest.raises(InputError, match=r"policy.npz: given twice"):
        load_policies("*.npz", "policy.npz")


def test_a_link_keeps_its_own_name(save, tmp_path):
    (tmp_path / "best.npz").symlink_to(save("policy.npz"))
    assert list(load_policies(str(tmp_path / "*.npz"))) == ["best", "policy"]


def test_an_existing_file_wins_over_its_name_read_as_a_pattern(save):
    assert list(load_policies(save("run[1].npz"))) == ["run[1]"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.pkl", b"", "the file is empty"),
        ("text.txt", b"hello, this is no policy", "not a policy in any format"),
        ("text.npz", b"hello, this is no policy", "not a policy in any format"),
        ("text.onnx", b"hello, this is no policy", "(not a readable ONNX file|needs the extra)"),
        ("text.pkl", b"hello, this is no policy", "not a readable pickle"),
        ("short.bin", b"\x80", "not a readable pickle"),
        ("damaged.npz", b"PK\x03\x04 and then nothing", "the file is damaged"),
        ("damaged.safetensors", b"\x03\0\0\0\0\0\0\0{!}", "not a readable .safetensors file"),
        ("noise.bin", bytes(range(200, 256)), "not a policy in any format"),
    ],
)
def test_files_that_are_no_policies_are_refused(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=f"{name}: .*{message}"):
        load_policy(tmp_path / name)


def test_a_truncated_file_of_weights_is_refused(save, tmp_path):
    for name in ("policy.npz", "policy.safetensors"):
        path = tmp_path / name
        save(name)
        path.write_bytes(path.read_bytes()[:-40])
        with pytest.raises(InputError, match=name):
            load_policy(path)


def test_a_zip_of_anything_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "some.zip", "w") as archive:
        archive.writestr("readme.txt", "hello")
    with pytest.raises(InputError, match=r"some.zip: not a policy in any format"):
        load_policy(tmp_path / "some.zip")


def test_missing_files_folders_and_empty_patterns_are_said(tmp_path):
    with pytest.raises(InputError, match="there is no such file"):
        load_policy(tmp_path / "missing.pkl")
    with pytest.raises(InputError, match="is a folder"):
        load_policy(tmp_path)
    with pytest.raises(InputError, match="no file matches"):
        load_policies(str(tmp_path / "*.pkl"))


@pytest.mark.parametrize(
    ("module", "extra", "name", "content"),
    [("onnxruntime", "onnx", "policy.onnx", b"\x08\x08"), ("torch", "torch", "policy.pt", None)],
)
def test_a_missing_extra_is_named(tmp_path, monkeypatch, module, extra, name, content):
    monkeypatch.setitem(sys.modules, module, None)
    if content is None:
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr("policy/constants.pkl", b"")
    else:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=rf"needs the extra '{extra}': pip install 'vlbm\[{extra}\]'"):
        load_policy(tmp_path / name)
