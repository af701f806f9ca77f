"""The target policies of DOPE: pickles, read by a restricted unpickler that runs no code."""

from __future__ import annotations

import io
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from vlbm.errors import InputError, first_line
from vlbm.policies.archives import read_whole
from vlbm.policies.mlp import MLPPolicy
from vlbm.policies.pickles import check_operations
from vlbm.policies.weights import policy_from_tensors


def read_dope(path: Path) -> MLPPolicy:
    """Read a pickle of named arrays; any other content is refused and not run."""
    return policy_from_tensors(read_pickled_arrays(read_whole(path), source=str(path)), source=str(path))


def read_pickled_arrays(content: bytes, *, source: str) -> dict[str, Any]:
    """Named arrays, numbers and texts from a pickle of any protocol, Python 2's included."""
    try:
        check_operations(content)
        loaded = _ArraysOnly(content).load()
    except InputError as error:
        raise InputError(f"{source}: {error}") from error
    except Exception as error:  # a damaged pickle can raise anything
        raise InputError(f"{source}: not a readable pickle of arrays ({first_line(error)})") from error
    if not isinstance(loaded, dict) or not all(isinstance(name, str) for name in loaded):
        raise InputError(f"{source}: the pickle holds no dictionary of named arrays")
    return {name: value.array if isinstance(value, _Array) else value for name, value in loaded.items()}


class _ArraysOnly(pickle.Unpickler):
    """An unpickler in which the names that array pickles use mean our stand-ins, and no other name exists.

    Stand-ins rather than NumPy's own functions, because those trust the element type they are given,
    strides and all. They are bound methods, so that a pickle has nothing it could set attributes on.
    """

    def __init__(self, content: bytes):
        # Python 2 pickled the bytes of an array as a text, which only latin1 gives back unharmed.
        super().__init__(io.BytesIO(content), encoding="latin1")
        self._left = 2 * len(content)

    def find_class(self, module: str, name: str) -> Any:
        package, _, rest = module.partition(".")
        rest = rest.removeprefix("_core.").removeprefix("core.")
        match package, rest, name:
            case "numpy", "multiarray", "_reconstruct":
                return self._empty_array
            case "numpy", "multiarray", "scalar":
                return self._scalar
            case "numpy", "numeric", "_frombuffer":
                return self._from_buffer
            case "numpy", "", "dtype":
                return self._element
            case "numpy", "", "ndarray":
                return "ndarray"  # only ever an argument of _reconstruct
            case "_codecs" | "codecs", "", "encode":
                return self._encode
        raise InputError(f"the pickle asks for '{module}.{name}'; only arrays are read, nothing is run")

    def _empty_array(self, *_: Any) -> _Array:
        return _Array(self)

    def _element(self, code: str, *_: Any) -> _Element:
        return _Element(code)

    def _scalar(self, element: _Element, raw: bytes | str) -> np.ndarray:
        return self.decode(raw, element, (), "C")

    def _from_buffer(self, raw: bytes, element: _Element, shape: tuple[int, ...], order: str) -> np.ndarray:
        return self.decode(raw, element, shape, order)

    def _encode(self, text: str, encoding: str) -> bytes:
        if encoding not in ("latin1", "latin-1"):
            raise InputError(f"the pickle asks for the encoding '{encoding}'; arrays use latin1 only")
        encoded = text.encode("latin1")
        self._count(len(encoded))
        return encoded

    def decode(self, raw: bytes | str, element: _Element, shape: tuple[int, ...], order: str) -> np.ndarray:
        dtype = element.dtype()
        content = raw.encode("latin1") if isinstance(raw, str) else bytes(raw)
        self._count(len(content))
        if len(content) != math.prod(shape) * dtype.itemsize:
            raise InputError(f"the pickle's array of shape {shape} comes with {len(content)} bytes")
        return np.frombuffer(content, dtype).reshape(shape, order="F" if order == "F" else "C")

    def _count(self, size: int) -> None:
        """The same bytes could be made into arrays without end; old pickles need them twice."""
        self._left -= size
        if self._left < 0:
            raise InputError("the pickle's arrays take more than it holds; write the policy again")


class _Element:
    """Stands in for a NumPy element type."""

    def __init__(self, code: str):
        self.code = code
        self.order = "|"

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = state[1]

    def dtype(self) -> np.dtype:
        if self.code not in ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1"):
            raise InputError(f"the pickle holds an array of '{self.code}'; only numbers are read")
        if self.order not in ("<", ">", "=", "|"):
            raise InputError(f"the pickle holds an array in the byte order '{self.order}'")
        return np.dtype(self.order + self.code)


class _Array:
    """Stands in for an array until the pickle says what is in it."""

    array: np.ndarray

    def __init__(self, reader: _ArraysOnly):
        self._reader = reader

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        shape, element, fortran, raw = state[-4:]
        self.array = self._reader.decode(raw, element, shape, "F" if fortran else "C")
