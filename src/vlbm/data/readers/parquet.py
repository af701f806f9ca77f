"""Parquet files, unpacked only so far: a thousand million equal values are a few bytes of a file."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.parquet import ParquetFile

from vlbm import limits
from vlbm.data.readers import check

ROWS = 65_536  # unpacked between two looks at how much it is


def open_file(path: check.Path) -> ParquetFile:
    """The file, whose texts stay numbers of a list until it is known how long they are together."""
    kinds = ParquetFile(path).schema_arrow
    texts = [field.name for field in kinds if _is_text(field.type)]
    return ParquetFile(path, read_dictionary=texts)


def read_columns(
    path: check.Path, file: ParquetFile, names: Sequence[str], *, file_bytes: int, beside: int = 0
) -> pa.Table:
    """Columns, of which and `beside` which no more is unpacked than a file of that size may hold."""

    def claim(size: int) -> None:
        what = f"what it unpacks to, up to column '{names[-1]}',"
        limits.check_claim(path, beside + size, file_bytes=file_bytes, what=what)

    claim(8 * file.metadata.num_rows * len(names))
    kinds = pa.schema([_plain(file.schema_arrow.field(name)) for name in names])
    unpacked, batches = 0, []
    # The metadata of a column say how long its lists are, but reading damaged ones ends the process.
    for batch in file.iter_batches(ROWS, columns=list(names)):
        unpacked += sum(_count_bytes(column) for column in batch.columns)
        claim(unpacked)
        batches.append(pa.RecordBatch.from_arrays([batch.column(name) for name in names], names).cast(kinds))
    return pa.Table.from_batches(batches, kinds)


def _is_text(kind: pa.DataType) -> bool:
    return any(
        is_kind(kind)
        for is_kind in (
            pa.types.is_string,
            pa.types.is_large_string,
            pa.types.is_binary,
            pa.types.is_large_binary,
        )
    )


def _plain(field: pa.Field) -> pa.Field:
    return field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field


def _count_bytes(column: pa.Array) -> int:
    """What a column takes, its texts written out."""
    if not pa.types.is_dictionary(column.type) or not _is_text(column.type.value_type):
        return column.nbytes
    lengths = pc.cast(pc.binary_length(column.dictionary), pa.int64())
    return pc.sum(lengths.take(column.indices)).as_py() or 0
