"""NumPy's array files: what a header declares is checked before anything is allocated."""

from __future__ import annotations

import math
from typing import IO, NamedTuple

import numpy as np

from vlbm.data.readers import check
from vlbm.errors import InputError

# Version 3 is for records alone.
READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


class Header(NamedTuple):
    """What the header of an array file declares."""

    shape: tuple[int, ...]
    dtype: np.dtype
    fortran_order: bool
    offset: int  # of the data in the file


def read_header(
    path: check.Path, name: str, file: IO[bytes], *, held: int, kind: str, text: bool = False
) -> Header:
    """The header of an array file of `held` bytes, if they hold the plain numbers (or the text) it declares.

    `kind` is what messages call the file at `path`.
    """
    try:
        shape, fortran_order, dtype = READERS[np.lib.format.read_magic(file)](file)
    # Parsing a header of thousands of brackets or signs runs out of the parser's stack.
    except (Exception, MemoryError) as error:
        raise InputError(_explain(path, kind, f"field '{name}' has no header of plain numbers")) from error
    if dtype.hasobject:
        raise InputError(
            f"{path}: field '{name}' holds Python objects, not numbers (arrays of unequal lengths?); "
            "save it as one array of numbers"
        )
    if not (text and dtype.kind == "U"):
        check.numeric(path, name, dtype)
    offset = file.tell()
    if any(size < 0 for size in shape) or math.prod(shape) * dtype.itemsize > held - offset:
        declared = f"declares an array of shape {shape} and type {dtype}"
        found = f"field '{name}' {declared}, but holds {max(held - offset, 0)} bytes"
        raise InputError(_explain(path, kind, found))
    return Header(shape, dtype, fortran_order, offset)


def _explain(path: check.Path, kind: str, found: str) -> str:
    return (
        f"{path}: cannot be read as {kind} ({found}); the file may be damaged or incomplete: "
        "fetch or write it again"
    )
