"""JSON with one record for each step: one a line, or all in a list."""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from vlbm.data.readers import check
from vlbm.data.readers.compressed import open_unpacked
from vlbm.errors import InputError

AT_ONCE = 20_000  # records; as Python's objects they take ten times their room
DEEPEST = 4  # records within records, or lists within lists


def is_json(head: bytes) -> bool:
    """Whether a text that begins so is one of records."""
    return _without_mark(head).startswith((b"{", b"["))


def looks_like_steps(head: bytes) -> bool:
    """Whether the first line or entry is a record of at least three fields, as far as it can be seen."""
    text = _without_mark(head).decode("utf-8", errors="replace")
    listed = text.startswith("[")
    text = text.removeprefix("[").lstrip() if listed else text.split("\n", 1)[0]
    try:
        record, _ = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        # It may go on beyond what can be seen.
        return text.startswith('{"') and len(text) > len(head) // 2 and (listed or b"\n" not in head)
    return isinstance(record, dict) and len(record) >= 3


def read_records(path: check.Path) -> pa.Table:
    """A column for each field; the fields of a record within a record are columns such as `obs.x`."""
    records, parts = _iterate_records(path), []
    with check.translate_errors(path, "JSON"):
        while batch := list(itertools.islice(records, AT_ONCE)):
            parts.append(pa.Table.from_pylist(batch))
        # Whole numbers may turn into others further down.
        table = pa.concat_tables(parts, promote_options="permissive") if parts else pa.table({})
        while any(pa.types.is_struct(field.type) for field in table.schema):
            table = table.flatten()
    return table


def _iterate_records(path: check.Path) -> Iterator[dict[str, Any]]:
    for row, record in enumerate(_iterate_values(path)):
        yield _checked(path, row, record)


def _iterate_values(path: check.Path) -> Iterator[Any]:
    """What is in the list, or in each line."""
    with open_unpacked(path) as file, io.TextIOWrapper(file, encoding="utf-8-sig") as text:
        first = next((line for line in text if line.strip()), "")
        if first.lstrip().startswith("["):
            yield from json.loads(first + text.read())
            return
        for line in itertools.chain([first], text):
            if line.strip():
                yield json.loads(line)


def _checked(path: check.Path, row: int, record: Any) -> dict[str, Any]:
    if not isinstance(record, dict):
        raise InputError(
            f"{path}: has {json.dumps(record)[:40]} in row {row} (rows count from 0), which is no record; "
            'give one for each step, such as {"obs": [0.1, 0.2], "action": 1, "reward": 0.5}'
        )
    level: list[Any] = [record]
    for _ in range(DEEPEST):
        level = [
            value
            for outer in level
            for value in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(value, dict | list)
        ]
    if level:
        raise InputError(
            f"{path}: the record in row {row} (rows count from 0) nests deeper than {DEEPEST} levels; give "
            "vectors as lists of numbers"
        )
    return record


def _without_mark(head: bytes) -> bytes:
    return head.removeprefix(b"\xef\xbb\xbf").lstrip()
