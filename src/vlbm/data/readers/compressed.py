"""Text files as bytes, unpacked where gzip has compressed them, but no further than is allowed."""

from __future__ import annotations

import gzip
import io
import os
from typing import IO, Any

from vlbm import limits
from vlbm.data.readers import check

MAGIC = b"\x1f\x8b"
CHUNK = 1 << 16
FACTOR = 300.0  # logs shrink tenfold, and a hundredfold where little changes


def open_unpacked(path: check.Path) -> IO[bytes]:
    """The bytes of a file, or what they unpack to."""
    file = limits.open_regular(path)
    packed = file.read(len(MAGIC)) == MAGIC
    file.seek(0)
    return io.BufferedReader(_BoundedGzip(path, file), CHUNK) if packed else file


def read_head(path: check.Path, size: int) -> bytes:
    """The first bytes of a compressed file, unpacked."""
    with check.translate_errors(path, "gzip"), open_unpacked(path) as file:
        return file.read(size)


class _BoundedGzip(io.RawIOBase):
    """What a compressed file unpacks to; an error once that is more than such a file may hold."""

    def __init__(self, path: check.Path, file: IO[bytes]) -> None:
        self._path, self._packed = path, file
        self._file = gzip.GzipFile(fileobj=file, mode="rb")
        self._size, self._read = os.fstat(file.fileno()).st_size, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with check.translate_errors(self._path, "gzip"):
            count = self._file.readinto(buffer)
        self._read += count
        limits.check_claim(
            self._path, self._read, file_bytes=self._size, factor=FACTOR, what="its text, unpacked,"
        )
        return count

    def close(self) -> None:
        self._file.close()
        self._packed.close()
        super().close()
