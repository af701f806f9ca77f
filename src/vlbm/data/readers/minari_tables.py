"""Minari's tables: a folder for each episode, with Parquet or Arrow files in it."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc

from vlbm import limits
from vlbm.data.readers import check, parquet
from vlbm.errors import InputError

FIELDS = ["observations", "actions", "rewards", "terminations"]
KIND = "a Minari data set"


def read_table(path: check.Path, folder: Path, name: str, kind: str) -> pa.Table:
    """The rows of one episode; `path` is what messages call the data set."""
    place = folder / name
    limits.check_inside(folder, place)
    if not place.is_dir():
        raise InputError(f"{path}: has no folder of episode {name}; fetch the data set again")
    read = _read_parquet if kind == "parquet" else _read_arrow
    tables = []
    for file in sorted(place.iterdir()):
        if file.name.startswith((".", "_", "metadata.json")):
            continue
        limits.check_inside(folder, file)
        limits.check_regular_file(file)
        with check.translate_errors(path, KIND):
            tables.append(read(path, file))
    check.present(path, tables[0].column_names if tables else [], FIELDS)
    with check.translate_errors(path, KIND):
        return pa.concat_tables(tables)


def _read_parquet(path: check.Path, file: Path) -> pa.Table:
    opened = parquet.open_file(file)
    present = [name for name in FIELDS if name in opened.schema_arrow.names]
    return parquet.read_columns(path, opened, present, file_bytes=os.path.getsize(file))


def _read_arrow(path: check.Path, file: Path) -> pa.Table:
    """The stream inside an Arrow file, which ends with an index that is not needed."""
    with limits.open_regular(file) as opened:
        content = opened.read()
    if not content.startswith(b"ARROW1\0\0"):
        raise ValueError(f"{file.name} is no Arrow file")
    messages = pa.ipc.MessageReader.open_stream(pa.py_buffer(content)[8:])
    schema = pa.ipc.read_schema(messages.read_next_message())
    batches = []
    for message in messages:
        if _is_compressed(message.metadata.to_pybytes()):
            raise InputError(
                f"{path}: {file.name} is compressed and does not say how much; write the data set in Parquet"
            )
        batches.append(pa.ipc.read_record_batch(message, schema))
    table = pa.Table.from_batches(batches, schema)
    # Arrow believes its files: offsets beyond the data would be read from whatever lies there.
    table.validate(full=True)
    return table.select([name for name in FIELDS if name in table.column_names])


def _is_compressed(message: bytes) -> bool:
    """Whether a record batch says how it is compressed: the fourth field of the message's header."""

    def find(table: int, slot: int) -> int | None:
        (back,) = struct.unpack_from("<i", message, table)
        size, *_ = struct.unpack_from("<H", message, table - back)
        if 4 + 2 * slot >= size:
            return None
        (offset,) = struct.unpack_from("<H", message, table - back + 4 + 2 * slot)
        return table + offset if offset else None

    (root,) = struct.unpack_from("<I", message, 0)
    header = find(root, 2)
    if header is None:
        return False
    (offset,) = struct.unpack_from("<I", message, header)
    return find(header + offset, 3) is not None
