"""What a pickle may ask of its reader, checked before it is read."""

from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Mapping
from typing import Any

# The pickles of policies have hundreds. Containers within containers, a hundred thousand deep, would end
# the interpreter when they are hashed, and places in its table of objects take memory up to the largest.
MOST_OPERATIONS = 20_000
PLACES = ("PUT", "BINPUT", "LONG_BINPUT")
# Bytes of a number in each of PyTorch's storages.
STORAGES = {
    "DoubleStorage": 8,
    "FloatStorage": 4,
    "HalfStorage": 2,
    "BFloat16Storage": 2,
    "LongStorage": 8,
    "IntStorage": 4,
    "ShortStorage": 2,
    "CharStorage": 1,
    "ByteStorage": 1,
    "BoolStorage": 1,
    "QInt8Storage": 1,
    "QUInt8Storage": 1,
    "QInt32Storage": 4,
}


def check_operations(content: bytes) -> None:
    """Refuse a pickle that is cut off, or whose operations are too many or need too large a table."""
    for number, (operation, argument, _) in enumerate(pickletools.genops(content)):
        if number > MOST_OPERATIONS:
            raise ValueError(f"more than {MOST_OPERATIONS:,} operations, which no file of weights has")
        if operation.name in PLACES and int(argument) > MOST_OPERATIONS:  # type: ignore[arg-type]
            raise ValueError(f"a place in a table of more than {argument:,} objects")


def check_storages(members: Mapping[str, bytes]) -> None:
    """Refuse pickles whose tensors claim more than is stored for them: PyTorch would read on."""
    for name, content in members.items():
        if name.endswith(".pkl"):
            check_operations(content)
            _Claims(content, name.removesuffix(".pkl"), members).load()


class _Claims(pickle.Unpickler):
    """Reads a pickle with stand-ins for all that it names, to see what it says of storages."""

    def __init__(self, content: bytes, folder: str, members: Mapping[str, bytes]):
        super().__init__(io.BytesIO(content))
        self._folder, self._members = folder, members

    def find_class(self, module: str, name: str) -> Any:
        return type(name, (_StandIn,), {})

    def persistent_load(self, claim: Any) -> Any:
        kind, storage, key, _, count = claim
        size = STORAGES.get(getattr(storage, "__name__", ""))
        if kind != "storage" or size is None or not isinstance(count, int):
            raise ValueError("numbers that are stored in an unknown way")
        stored = self._members.get(f"{self._folder}/{key}", b"")
        if count * size != len(stored):
            raise ValueError(f"{count:,} numbers in {len(stored):,} bytes")
        return _StandIn()


class _StandIn:
    """Takes whatever a pickle does to what it makes."""

    def __new__(cls, *_: Any, **__: Any) -> _StandIn:
        return super().__new__(cls)

    def __init__(self, *_: Any, **__: Any):
        pass

    def __setstate__(self, _: Any) -> None:
        pass

    def __setitem__(self, _: Any, __: Any) -> None:
        pass

    def append(self, _: Any) -> None:
        pass

    def extend(self, _: Any) -> None:
        pass
