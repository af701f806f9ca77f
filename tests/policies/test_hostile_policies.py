"""Policy files made to do harm: nothing hangs, nothing outside is read or written, nothing is inflated."""

from __future__ import annotations

import collections
import io
import os
import pickle
import socket
import struct
import zipfile

import numpy as np
import pytest

from vlbm.errors import InputError
from vlbm.limits import MAX_BYTES_VARIABLE
from vlbm.policies import load_policies, load_policy
from vlbm.policies.weights import TEXTS, policy_to_tensors

HUGE = 1 << 40


@pytest.mark.parametrize("name", ["policy.pkl", "policy.onnx", "policy.npz", "policy"])
@pytest.mark.parametrize("linked", [False, True])
def test_what_would_wait_for_a_writer_is_refused_at_once(tmp_path, name, linked):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / name).symlink_to(tmp_path / "pipe") if linked else (tmp_path / "pipe").rename(tmp_path / name)
    with pytest.raises(InputError, match=f"{name}: is a FIFO, not a file"):
        load_policies(str(tmp_path / name))


def test_devices_and_sockets_are_no_policies(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="is a device, not a file"):
        load_policy("/dev/zero")
    monkeypatch.chdir(tmp_path)  # the names of sockets are short
    with socket.socket(socket.AF_UNIX) as opened:
        opened.bind("socket.pkl")
        with pytest.raises(InputError, match="is a socket, not a file"):
            load_policy("socket.pkl")


def test_a_file_of_nothing_but_holes_is_not_read(tmp_path):
    for name, start in (("a.pkl", b"\x80\x02"), ("a.onnx", b"\x08\x08"), ("a.npz", b"PK\x03\x04")):
        with (tmp_path / name).open("wb") as file:
            file.write(start)
            file.truncate(HUGE)
        with pytest.raises(InputError, match=rf"{name}: .*({MAX_BYTES_VARIABLE}|damaged)"):
            load_policy(tmp_path / name)


def array(shape, *, dtype="<f4", content=b""):
    header = repr({"descr": dtype, "fortran_order": False, "shape": shape}).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + content


@pytest.mark.parametrize(
    "shape", [(HUGE,), (1 << 62, 4), (-1, -4), (1 << 40, 1 << 40), (0, 1 << 62), (2, 2)], ids=str
)
def test_an_array_claims_no_more_than_is_there(tmp_path, shape):
    with zipfile.ZipFile(tmp_path / "policy.npz", "w") as archive:
        archive.writestr("fc0/weight.npy", array(shape, content=b"\0" * 8))
    with pytest.raises(InputError, match=r"policy.npz: not a readable .npz"):
        load_policy(tmp_path / "policy.npz")


def test_a_bomb_is_not_unpacked(tmp_path, monkeypatch):
    size = 1 << 24
    with zipfile.ZipFile(tmp_path / "policy.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("fc0/weight.npy", array((size,), dtype="|u1", content=b"\0" * size))
    monkeypatch.setenv(MAX_BYTES_VARIABLE, str(size // 2))
    with pytest.raises(InputError, match=rf"policy.npz: its content, unpacked, .*{MAX_BYTES_VARIABLE}"):
        load_policy(tmp_path / "policy.npz")


def pickled(*parts: bytes) -> bytes:
    return b"\x80\x02" + b"".join(parts) + b"."


def test_a_pickle_needs_no_table_larger_than_its_operations(tmp_path):
    (tmp_path / "policy.pkl").write_bytes(pickled(b"}", b"r" + struct.pack("<I", 1 << 31)))
    with pytest.raises(InputError, match=r"policy.pkl: .*a table of more than 2,147,483,648 objects"):
        load_policy(tmp_path / "policy.pkl")


def test_a_pickle_nested_without_end_is_refused_before_it_is_read(tmp_path):
    deep = b")" + b"\x85" * 1_000_000
    (tmp_path / "policy.pkl").write_bytes(pickled(b"}", deep, b"K\x01s"))
    with pytest.raises(InputError, match=r"policy.pkl: .*more than 20,000 operations"):
        load_policy(tmp_path / "policy.pkl")


def test_the_bytes_of_a_pickle_become_arrays_once(tmp_path):
    raw = b"B" + struct.pack("<I", 1 << 20) + b"\0" * (1 << 20) + b"q\x00"
    make = b"cnumpy.core.numeric\n_frombuffer\nq\x01"
    element = b"cnumpy\ndtype\nU\x02f4\x85Rq\x02"
    call = b"(h\x00h\x02J" + struct.pack("<i", 1 << 18) + b"\x85U\x01CtR"
    entries = [b"U\x04" + f"a{index:03d}".encode() + b"h\x01" + call + b"s" for index in range(500)]
    content = pickled(raw, b"0", make, b"0", element, b"0", b"}", *entries)
    (tmp_path / "policy.pkl").write_bytes(content.replace(b"\x80\x02", b"\x80\x03", 1))
    with pytest.raises(InputError, match=r"policy.pkl: the pickle's arrays take more than it holds"):
        load_policy(tmp_path / "policy.pkl")


onnx = pytest.importorskip("onnx")


def graph(path, *, inner=False):
    helper = onnx.helper
    weight = onnx.numpy_helper.from_array(np.ones((3, 2), np.float32), "weight")
    weight.ClearField("raw_data")
    weight.data_location = onnx.TensorProto.EXTERNAL
    entry = weight.external_data.add()
    entry.key, entry.value = "location", "weights.bin"
    given = [helper.make_tensor_value_info("observation", onnx.TensorProto.FLOAT, ["batch", 3])]
    gives = [helper.make_tensor_value_info("action", onnx.TensorProto.FLOAT, ["batch", 2])]
    nodes = [helper.make_node("MatMul", ["observation", "weight"], ["action"])]
    if inner:
        nodes.insert(0, helper.make_node("Constant", [], ["weight"], value=weight))
    model = helper.make_model(
        helper.make_graph(nodes, "policy", given, gives, [] if inner else [weight]),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize("inner", [False, True])
def test_an_onnx_file_reads_no_other_file(tmp_path, monkeypatch, inner):
    pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weights.bin").write_bytes(np.ones((3, 2), np.float32).tobytes())
    with pytest.raises(InputError, match=r"policy.onnx: keeps its weights in other files"):
        load_policy(graph(tmp_path / "policy.onnx", inner=inner))


torch = pytest.importorskip("torch")
ignore_deprecation = pytest.mark.filterwarnings("ignore::DeprecationWarning")


class Writes(torch.nn.Module):
    def forward(self, observation: torch.Tensor):
        torch.save(observation, "written")
        return observation


class Reads(torch.nn.Module):
    def forward(self, observation: torch.Tensor):
        return torch.from_file("written", True, 10)


class Honest(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2, 3))

    def forward(self, observation: torch.Tensor):
        return observation @ self.weight.T


@ignore_deprecation
@pytest.mark.parametrize(("module", "asks"), [(Writes, "save"), (Reads, "from_file")])
def test_a_script_that_reads_or_writes_files_is_refused(tmp_path, monkeypatch, module, asks):
    monkeypatch.chdir(tmp_path)
    torch.jit.script(module()).save("policy.pt")
    with pytest.raises(InputError, match=f"policy.pt: .*its code asks for '{asks}'"):
        load_policy("policy.pt").mean(np.zeros((2, 3), np.float32))
    assert os.listdir() == ["policy.pt"]


@ignore_deprecation
@pytest.mark.parametrize(
    "code",
    [
        "x.save('written')",
        "torch . \\\n  save(x, 'written')",
        "ops.inductor._reinterpret_tensor(x, [9], [1], 99)",
        "ops . \\\n inductor._reinterpret_tensor(x, [9], [1], 99)",
    ],
)
def test_code_is_looked_at_however_it_is_written(tmp_path, code):
    whole = tmp_path / "whole.pt"
    torch.jit.script(Honest()).save(str(whole))
    with zipfile.ZipFile(whole) as archive, zipfile.ZipFile(tmp_path / "policy.pt", "w") as changed:
        for name in archive.namelist():
            content = archive.read(name)
            if name.endswith(".py"):
                content = content.replace(
                    b"    return", f"    x = observation\n    {code}\n    return".encode()
                )
            changed.writestr(name, content)
    with pytest.raises(InputError, match=r"policy.pt: .*its code asks for"):
        load_policy(tmp_path / "policy.pt")


@ignore_deprecation
def test_tensors_of_a_script_are_no_larger_than_the_file(tmp_path):
    module = Honest()
    module.weight = torch.nn.Parameter(torch.ones(1, 1).expand(1 << 16, 1 << 16), requires_grad=False)
    torch.jit.script(module).save(str(tmp_path / "policy.pt"))
    with pytest.raises(InputError, match=r"policy.pt: .*claim more numbers than it holds"):
        load_policy(tmp_path / "policy.pt")


@ignore_deprecation
@pytest.mark.parametrize("kept", [0, 12])
def test_numbers_that_a_script_claims_are_there(tmp_path, kept):
    """PyTorch believes the claim, and reads whatever lies behind."""
    whole = tmp_path / "whole.pt"
    torch.jit.script(Honest()).save(str(whole))
    with zipfile.ZipFile(whole) as archive, zipfile.ZipFile(tmp_path / "policy.pt", "w") as changed:
        for name in archive.namelist():
            content = archive.read(name)
            changed.writestr(name, content[:kept] if name.endswith("/data/0") else content)
    with pytest.raises(InputError, match=rf"policy.pt: .*6 numbers in {kept} bytes"):
        load_policy(tmp_path / "policy.pt").mean(np.zeros((2, 3), np.float32))


def sb3_model(path, weights: bytes):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data", "{}")
        archive.writestr("policy.pth", weights)
    return path


def test_tensors_of_an_sb3_model_are_no_larger_than_the_file(tmp_path):
    held = io.BytesIO()
    torch.save(collections.OrderedDict(a=torch.ones(1, 1).expand(1 << 20, 1 << 20)), held)
    with pytest.raises(InputError, match=r"model.zip: .*claim more numbers than it holds"):
        load_policy(sb3_model(tmp_path / "model.zip", held.getvalue()))


def test_an_archive_within_an_sb3_model_is_not_inflated(tmp_path, monkeypatch):
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({}))
        archive.writestr("archive/data/0", b"\0" * (1 << 24))
    monkeypatch.setenv(MAX_BYTES_VARIABLE, str(1 << 23))
    with pytest.raises(InputError, match=rf"model.zip: its content, unpacked, .*{MAX_BYTES_VARIABLE}"):
        load_policy(sb3_model(tmp_path / "model.zip", held.getvalue()))


def test_a_part_that_comes_twice_is_refused(tmp_path, make_policy):
    arrays = policy_to_tensors(make_policy()) | dict.fromkeys(TEXTS, np.array("relu"))
    np.savez(tmp_path / "policy.npz", **arrays)
    with (
        zipfile.ZipFile(tmp_path / "policy.npz", "a") as archive,
        pytest.warns(UserWarning, match="Duplicate"),
    ):
        archive.writestr("nonlinearity.npy", b"")
    with pytest.raises(InputError, match=r"policy.npz: two parts of the archive have the same name"):
        load_policy(tmp_path / "policy.npz")
