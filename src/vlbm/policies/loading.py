"""Loading policies from files and functions, recognised by content."""

from __future__ import annotations

import glob
import os
import re
from collections import Counter
from pathlib import Path

from vlbm.errors import InputError
from vlbm.limits import open_regular
from vlbm.policies.archives import list_members
from vlbm.policies.base import Policy
from vlbm.policies.dope import read_dope
from vlbm.policies.function import SPECIFICATION, load_function
from vlbm.policies.onnx import ONNXPolicy
from vlbm.policies.sb3 import read_sb3
from vlbm.policies.torch import TorchScriptPolicy
from vlbm.policies.weights import read_npz, read_safetensors

KNOWN = (
    "known are DOPE pickles, .npz and .safetensors weights, ONNX, TorchScript, Stable-Baselines3 zips "
    "and module:function"
)


def load_policy(source: str | os.PathLike[str]) -> Policy:
    """The policy in a file, or the one that `module:function` names.

    Args:
        source: A file, or `module:function`.
    """
    if _is_function(source):
        return load_function(os.fspath(source))
    path = Path(source).expanduser()
    if not path.exists():
        raise InputError(f"{path}: there is no such file; {KNOWN}")
    if path.is_dir():
        raise InputError(f"{path}: is a folder; give the policies in it, such as '{path / '*'}'")
    return _read(path)


def load_policies(*sources: str | os.PathLike[str]) -> dict[str, Policy]:
    """Policies by name, in the order given; patterns such as 'candidates/*.onnx' in natural order.

    A policy is named after its file without the ending, or after its function. Where that is not
    unique, the names of enough parent folders come in front.

    Args:
        sources: Files, patterns such as 'candidates/*.onnx', or `module:function`.
    """
    found = [single for source in sources for single in _expand(source)]
    identities = [single if _is_function(single) else os.path.abspath(single) for single in found]
    twice = [single for single, count in Counter(identities).items() if count > 1]
    if twice:
        raise InputError(f"{twice[0]}: given twice")
    return {
        name: load_policy(single)
        for name, single in zip(_shortest_unique_names(identities), found, strict=True)
    }


def _read(path: Path) -> Policy:
    with open_regular(path) as file:
        start = file.read(9)
    if not start:
        raise InputError(f"{path}: the file is empty")
    if start.startswith(b"PK"):
        return _read_zip(path)
    if path.suffix == ".onnx":
        return ONNXPolicy(path)
    if len(start) == 9 and start[8:] == b"{" and int.from_bytes(start[:8], "little") < path.stat().st_size:
        return read_safetensors(path)
    # Pickles open with their protocol's number, but the two oldest protocols have no such mark.
    if (start[0] == 0x80 and start[1:2] <= b"\x05") or path.suffix in (".pkl", ".pickle"):
        return read_dope(path)
    if start[0] == 0x08:  # an ONNX file opens with the version of its format, field 1
        return ONNXPolicy(path)
    raise InputError(f"{path}: not a policy in any format that is read; {KNOWN}")


def _read_zip(path: Path) -> Policy:
    try:
        members = list_members(path)
    except InputError:
        raise
    except Exception as error:  # a damaged archive can raise anything
        raise InputError(f"{path}: the file is damaged ({error})") from error
    last = {member.rpartition("/")[2] for member in members}
    if {"data", "policy.pth"} <= set(members):
        return read_sb3(path)
    if "constants.pkl" in last:
        return TorchScriptPolicy(path)
    if any(member.endswith(".npy") for member in members):
        return read_npz(path)
    if "data.pkl" in last:
        raise InputError(
            f"{path}: written by torch.save, which keeps no network; save the policy with "
            "torch.jit.script(policy).save(...) or torch.onnx.export"
        )
    raise InputError(f"{path}: not a policy in any format that is read; {KNOWN}")


def _is_function(source: str | os.PathLike[str]) -> bool:
    text = os.fspath(source)
    return SPECIFICATION.fullmatch(text) is not None and not Path(text).exists()


def _expand(source: str | os.PathLike[str]) -> list[str]:
    text = os.path.expanduser(os.fspath(source))
    if _is_function(text) or Path(text).exists() or not glob.has_magic(text):
        return [text]
    matches = [match for match in glob.glob(text, recursive=True) if not Path(match).is_dir()]
    if not matches:
        raise InputError(f"{text}: no file matches")
    return sorted(matches, key=_natural_key)


def _natural_key(text: str) -> list[tuple[int, str]]:
    """policy_2 before policy_10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", text)]


def _shortest_unique_names(identities: list[str]) -> list[str]:
    """The shortest names that tell the policies apart, lengthened only where they clash."""
    longer = [_name_candidates(identity, identities) for identity in identities]
    chosen = [0] * len(identities)
    while True:
        names = [options[index] for options, index in zip(longer, chosen, strict=True)]
        clashing = {name for name, count in Counter(names).items() if count > 1}
        if not clashing:
            return names
        chosen = [
            min(index + (name in clashing), len(options) - 1)
            for options, index, name in zip(longer, chosen, names, strict=True)
        ]


def _name_candidates(identity: str, identities: list[str]) -> list[str]:
    if _is_function(identity):
        return [identity.rpartition(":")[2], identity]
    path = Path(identity)
    alike = sum(path.with_suffix("") == Path(other).with_suffix("") for other in identities)
    parts = [*path.parts[1:-1], path.name if alike > 1 else path.stem]
    return ["/".join(parts[-count:]) for count in range(1, len(parts) + 1)] + [identity]
