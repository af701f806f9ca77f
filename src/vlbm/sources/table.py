"""Tables with one row for each step: Parquet and CSV."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet
from jaxtyping import Bool, Float, Int, Shaped

from vlbm.episodes import Episodes
from vlbm.errors import InputError
from vlbm.sources import check
from vlbm.sources.columns import Columns, Found
from vlbm.sources.transitions import assemble

DELIMITERS = ",;\t"


def load(path: check.Path, columns: Columns | None = None, *, choices: int | None = None) -> Episodes:
    """Episodes of a table whose rows may stand in any order."""
    parquet = _is_parquet(path)
    present = _parquet_columns(path) if parquet else _csv_columns(path)
    found = (columns or Columns()).find(path, present)
    wanted = list(dict.fromkeys(name for columns in found.values() for name in columns.names))
    doubled = next((name for name in wanted if present.count(name) > 1), None)
    if doubled is not None:
        raise InputError(f"{path}: has two columns named '{doubled}'; give every column a name of its own")
    table = _read_parquet(path, wanted) if parquet else _read_csv(path, wanted)
    check.not_empty(path, table.num_rows)

    fields: dict[str, np.ndarray] = {
        "observations": _vectors(path, table, found["observation"]),
        "rewards": _numbers(path, table, found["reward"].names[0]),
    }
    if "next_observation" in found:
        fields["next_observations"] = _vectors(path, table, found["next_observation"])
    if "log_prob" in found:
        fields["log_probs"] = _numbers(path, table, found["log_prob"].names[0])
    fields["actions"], choices = _actions(path, table, found["action"], choices)

    terminated, truncated = (_flags(path, table, found.get(role)) for role in ("terminated", "truncated"))
    order, last = _episodes(path, table, found, terminated | truncated)
    if order is not None:
        fields = {name: values[order] for name, values in fields.items()}
        terminated = terminated[order]
    fields |= {"terminals": terminated, "timeouts": last & ~terminated}
    return assemble(path, fields, choices=choices, notes=_notes(found))


def _episodes(
    path: check.Path, table: pa.Table, found: dict[str, Found], ended: Bool[np.ndarray, " rows"]
) -> tuple[Int[np.ndarray, " rows"] | None, Bool[np.ndarray, " rows"]]:
    """The order of rows by episode and step (None where they stand so already), and each episode's last row."""
    step = _steps(path, table, found["step"].names[0]) if "step" in found else None
    if "episode" not in found:
        # File order; an episode begins after an end, and where the step number falls back.
        begins = np.zeros(len(ended), bool)
        begins[1:] = ended[:-1]
        if step is not None:
            begins[1:] |= step[1:] <= step[:-1]
        return None, np.append(begins[1:], True)

    name = found["episode"].names[0]
    code, labels = _codes(path, table, name)
    order = np.argsort(code, kind="stable") if step is None else np.lexsort((step, code))
    code, ended = code[order], ended[order]
    last = np.append(code[1:] != code[:-1], True)
    if step is not None:
        twice = ~last[:-1] & (step[order][1:] == step[order][:-1])
        if twice.any():
            row = int(np.argmax(twice))
            raise InputError(
                f"{path}: episode {labels[code[row]]!r} has two rows with step {step[order[row]]} "
                f"(rows {order[row]} and {order[row + 1]}, counting from 0); every step of an episode has one row"
            )
    early = ended & ~last
    if early.any():
        row = int(np.argmax(early))
        raise InputError(
            f"{path}: episode {labels[code[row]]!r} goes on after its end in row {order[row]} (counting from 0); "
            f"give each episode an id of its own in '{name}', or a step column that puts the rows in order"
        )
    in_order = bool((order[1:] > order[:-1]).all())
    return None if in_order else order, last


def _notes(found: dict[str, Found]) -> tuple[str, ...]:
    """What the missing columns leave open."""
    notes = []
    if "episode" not in found and "step" not in found:
        cuts = [found[role].names[0] for role in ("terminated", "truncated") if role in found]
        where = " and ".join(f"'{name}'" for name in cuts)
        notes.append(
            f"no episode column: rows are read in order, and episodes end where {where} says so"
            if cuts
            else "no episode column: the whole file is read as one episode"
        )
    if "terminated" not in found:
        notes.append("no column says which episodes terminated: all are read as cut off by a time limit")
    elif found["terminated"].names[0].lower() in ("done", "dones") and "truncated" not in found:
        notes.append(f"'{found['terminated'].names[0]}' is read as termination, not as a time limit")
    return tuple(notes)


def _actions(
    path: check.Path, table: pa.Table, found: Found, choices: int | None
) -> tuple[np.ndarray, int | None]:
    kind = table.column(found.names[0]).type
    whole = found.single and (pa.types.is_integer(kind) or pa.types.is_boolean(kind))
    if len(found.names) == 1 and not _is_list(kind) and (whole or choices is not None):
        return check.action_ids(path, found.names[0], _plain(path, table, found.names[0]), choices)
    return _vectors(path, table, found), choices


def _vectors(path: check.Path, table: pa.Table, found: Found) -> Float[np.ndarray, "rows size"]:
    """Columns side by side, or the lists of a single column."""
    if len(found.names) == 1 and _is_list(table.column(found.names[0]).type):
        return _lists(path, table, found.names[0])
    values = np.empty((table.num_rows, len(found.names)), np.float32)
    for index, name in enumerate(found.names):
        values[:, index] = _numbers(path, table, name)
    return values


def _lists(path: check.Path, table: pa.Table, name: str) -> Float[np.ndarray, "rows size"]:
    column = _filled(path, table, name)
    lengths = pc.list_value_length(column).to_numpy()
    if (lengths != lengths[0]).any() or lengths[0] == 0:
        row = int(np.argmax(lengths != lengths[0]))
        raise InputError(
            f"{path}: column '{name}' has a list of {lengths[row]} numbers in row {row} (rows count from 0), "
            f"but one of {lengths[0]} in row 0; all must have the same length, at least 1"
        )
    flat = pa.table({name: pc.list_flatten(column)})
    return _numbers(path, flat, name, per_row=int(lengths[0])).reshape(len(lengths), -1)


def _numbers(path: check.Path, table: pa.Table, name: str, *, per_row: int = 1) -> Float[np.ndarray, " rows"]:
    values = _plain(path, table, name, per_row=per_row)
    return check.finite(path, name, values, at=np.arange(len(values)) // per_row)


def _flags(path: check.Path, table: pa.Table, found: Found | None) -> Bool[np.ndarray, " rows"]:
    if found is None:
        return np.zeros(table.num_rows, bool)
    return check.flags(path, found.names[0], _plain(path, table, found.names[0]))


def _steps(path: check.Path, table: pa.Table, name: str) -> Shaped[np.ndarray, " rows"]:
    """Step numbers, or times: anything with an order that is not text."""
    column = _filled(path, table, name)
    return column.to_numpy() if pa.types.is_temporal(column.type) else _plain(path, table, name)


def _codes(path: check.Path, table: pa.Table, name: str) -> tuple[Int[np.ndarray, " rows"], list]:
    """Each row's episode as a number in the order of the ids, and the ids."""
    column = _filled(path, table, name).combine_chunks().dictionary_encode()
    labels = column.dictionary
    order = pc.array_sort_indices(labels).to_numpy()
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return rank[column.indices.to_numpy()], labels.take(order).to_pylist()


def _plain(path: check.Path, table: pa.Table, name: str, *, per_row: int = 1) -> Shaped[np.ndarray, " rows"]:
    """A column of numbers or flags as an array."""
    column = _filled(path, table, name, per_row=per_row)
    if pa.types.is_decimal(column.type):
        column = column.cast(pa.float64())
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or pa.types.is_boolean(column.type)):
        values = column.to_pylist()
        row = next((row for row, value in enumerate(values) if not _is_number(value)), 0)
        raise InputError(
            f"{path}: column '{name}' has type {column.type} and holds {values[row]!r} in row {row // per_row} "
            "(rows count from 0); it must hold numbers"
        )
    return column.to_numpy()


def _filled(path: check.Path, table: pa.Table, name: str, *, per_row: int = 1) -> pa.ChunkedArray:
    """A column without gaps."""
    column = table.column(name)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if column.null_count:
        row = int(np.argmax(column.is_null().to_numpy())) // per_row
        raise InputError(
            f"{path}: column '{name}' has no value (or NaN) in row {row} (rows count from 0); "
            "fill it in or remove that episode"
        )
    return column


def _is_number(value: object) -> bool:
    try:
        float(str(value))
    except ValueError:
        return False
    return True


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def _is_parquet(path: check.Path) -> bool:
    with open(path, "rb") as file:
        return file.read(4) == b"PAR1"


def _parquet_columns(path: check.Path) -> list[str]:
    with check.reading(path, "Parquet"):
        return list(pyarrow.parquet.read_schema(path).names)


def _read_parquet(path: check.Path, names: Sequence[str]) -> pa.Table:
    with check.reading(path, "Parquet"):
        return pyarrow.parquet.ParquetFile(path).read(columns=list(names))


def _csv_columns(path: check.Path) -> list[str]:
    with check.reading(path, "CSV"), open(path, encoding="utf-8-sig", newline="") as file:
        first = file.readline()
        file.seek(0)
        return [name.strip() for name in next(csv.reader(file, delimiter=delimiter(first)), [])]


def _read_csv(path: check.Path, names: Sequence[str]) -> pa.Table:
    ...


def delimiter(line: str) -> str:
    """The character that separates the columns of a header line."""
    return max(DELIMITERS, key=line.count)
