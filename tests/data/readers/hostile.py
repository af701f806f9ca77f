"""What hostile files are made of, and what it means to refuse them."""

from __future__ import annotations

import io
import resource
import shutil
import signal
from pathlib import Path

import h5py
import numpy as np
import pytest

from vlbm.data.readers import load
from vlbm.errors import InputError
from vlbm.limits import MAX_BYTES_VARIABLE

SECONDS = 20
ROOM = 2 << 30  # bytes of address space


@pytest.fixture(autouse=True)
def guarded(monkeypatch):
    """A hang and a flood become failures."""
    monkeypatch.delenv(MAX_BYTES_VARIABLE, raising=False)

    def give_up(*_):
        raise TimeoutError("takes too long")

    before = resource.getrlimit(resource.RLIMIT_AS)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + ROOM, before[1]))
    handler = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, handler)
    resource.setrlimit(resource.RLIMIT_AS, before)


def refused(path, message, **options):
    with pytest.raises(InputError, match=message) as caught:
        load(path, **options)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def hdf5(path, fields):
    with h5py.File(path, "w") as file:
        for name, values in fields.items():
            file[name] = values
    return path


def to_another_file(file, name, secret):
    file[name] = h5py.ExternalLink(str(secret), "observations")


def to_a_link(file, name, secret):
    file["door"] = h5py.ExternalLink(str(secret), "/")
    file[name] = h5py.SoftLink("/door/observations")


def to_raw_bytes(file, name, secret):
    file.create_dataset(name, (10, 2), np.float32, external=[(str(secret), 0, 80)])


def to_a_virtual_set(file, name, secret):
    layout = h5py.VirtualLayout((10, 2), np.float32)
    layout[:] = h5py.VirtualSource(str(secret), "observations", shape=(10, 2))
    file.create_virtual_dataset(name, layout)


LEAKS = [to_another_file, to_a_link, to_raw_bytes, to_a_virtual_set]


def link_out(file, outside):
    shutil.move(file, outside)
    file.symlink_to(outside)


def npy(shape, descr="<f4", data=b"", text=None):
    """An array file that declares what it likes."""
    header = text or repr({"descr": descr, "fortran_order": False, "shape": shape})
    encoded = header.encode()
    encoded += b" " * (-(len(encoded) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(encoded).to_bytes(2, "little") + encoded + data


def whole(values):
    written = io.BytesIO()
    np.save(written, values)
    return written.getvalue()
