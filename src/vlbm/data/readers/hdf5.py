"""HDF5 files, opened without following what leads out of them or believing what they declare."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import h5py

from vlbm import limits
from vlbm.data.readers import check
from vlbm.errors import InputError

# Links that lead to links that lead to links; more is a circle.
MOST_LINKS = 16


@contextmanager
def open_file(path: check.Path, *, kind: str = "HDF5") -> Iterator[h5py.File]:
    """The file, for reading; `kind` is what messages call it."""
    limits.check_regular_file(path)
    with check.translate_errors(path, kind):
        file = h5py.File(path, "r")
    with file:
        yield file


def find(path: check.Path, group: h5py.Group, name: str) -> Any:
    """The group or data set of that name, None if there is none; `path` is what messages call the file.

    Links within the file are followed; links and contents in other files are refused.
    """
    with check.translate_errors(path, "HDF5"):
        item = group
        waiting, links = name.split("/"), 0
        while waiting:
            part = waiting.pop(0)
            if part in ("", "."):
                continue
            if not isinstance(item, h5py.Group) or not item.id.links.exists(part.encode()):
                return None
            kind = item.id.links.get_info(part.encode()).type
            if kind == h5py.h5l.TYPE_HARD:
                item = item[part]
                continue
            links += 1
            if kind != h5py.h5l.TYPE_SOFT or links > MOST_LINKS:
                raise InputError(
                    f"{path}: field '{name}' is a link to another file, or in circles; copy what it leads to "
                    "into this file (h5repack does)"
                )
            target = item.get(part, getlink=True).path
            item = item.file if target.startswith("/") else item
            waiting = target.split("/") + waiting
        if isinstance(item, h5py.Dataset):
            _refuse_elsewhere(path, name, item)
        return item


def check_claims(path: check.Path, fields: Mapping[str, h5py.Dataset], *, limit: int | None = None) -> None:
    """What the data sets declare is not far more than what is stored of them."""
    with check.translate_errors(path, "HDF5"):
        declared = {name: count_bytes(item) for name, item in fields.items() if item.shape is not None}
        stored = min(sum(fields[name].id.get_storage_size() for name in declared), os.stat(path).st_size)
    limits.check_claim(path, sum(declared.values()), file_bytes=stored, what="what it declares", limit=limit)


def count_bytes(item: h5py.Dataset) -> int:
    """Bytes to read a data set; at least one whole chunk is unpacked for it."""
    # As C integers, hostile sizes could multiply to anything.
    sizes = (math.prod(int(size) for size in shape) for shape in (item.shape, item.chunks) if shape)
    return max(sizes, default=1) * max(item.dtype.itemsize, 4)


def _refuse_elsewhere(path: check.Path, name: str, item: h5py.Dataset) -> None:
    created = item.id.get_create_plist()
    if created.get_external_count() or created.get_layout() == h5py.h5d.VIRTUAL:
        raise InputError(
            f"{path}: the contents of field '{name}' lie in other files; copy them into this file "
            "(h5repack does)"
        )
