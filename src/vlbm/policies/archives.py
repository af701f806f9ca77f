"""Zip archives of policies, read whole once their declared sizes have been checked."""

from __future__ import annotations

import io
import math
import os
import zipfile

import numpy as np

from vlbm.errors import InputError
from vlbm.limits import check_claim, open_regular

Path = str | os.PathLike[str]
LARGEST = 1 << 32  # bytes of a policy; no network that acts is near it


def read_whole(path: Path) -> bytes:
    """The file's content, if a policy can be so large."""
    with open_regular(path) as file:
        check_claim(path, os.fstat(file.fileno()).st_size, what="the policy", limit=LARGEST)
        return file.read()


def list_members(path: Path) -> list[str]:
    """The names of what is in an archive; nothing is unpacked."""
    with open_regular(path) as file, zipfile.ZipFile(file) as archive:
        return archive.namelist()


def unpack(path: Path, content: bytes | None = None) -> dict[str, bytes]:
    """All members of the archive at the path, or of `content` that was found in it, by name."""
    content = read_whole(path) if content is None else content
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = archive.infolist()
        # No more than the declared size is ever unpacked.
        claimed = sum(member.file_size for member in members)
        check_claim(path, claimed, file_bytes=len(content), what="its content, unpacked,", limit=LARGEST)
        unpacked = {member.filename: archive.read(member) for member in members}
    if len(unpacked) < len(members):
        raise InputError(f"{path}: two parts of the archive have the same name; write the policy again")
    return unpacked


def pack_again(members: dict[str, bytes]) -> io.BytesIO:
    """An archive with these members and nothing else, so that every reader of it sees what we saw."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    packed.seek(0)
    return packed


def read_array(content: bytes) -> np.ndarray:
    """The array in a .npy member, whose header is checked before anything is allocated."""
    file = io.BytesIO(content)
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"an array of version {version}")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("an array of Python objects, which only running code could read")
    held = len(content) - file.tell()
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != held:
        raise ValueError(f"an array of shape {shape} and type {dtype} in {held} bytes")
    if held == 0:
        return np.empty(shape, dtype)
    return np.frombuffer(content, dtype, offset=file.tell()).reshape(shape, order="F" if fortran else "C")
