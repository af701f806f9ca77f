"""Tables with one row for each step: Parquet, CSV and JSON records."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from jaxtyping import Bool, Float, Int, Shaped

from vlbm.data.episodes import Episodes
from vlbm.data.readers import check, parquet
from vlbm.data.readers.columns import DELIMITERS, ColumnMatch, Columns
from vlbm.data.readers.compressed import open_unpacked
from vlbm.data.readers.records import is_json, read_records
from vlbm.data.readers.transitions import assemble
from vlbm.errors import InputError

LONGEST_HEADER = 1 << 22  # characters; a longer first line is no line of names


class RowOrder(NamedTuple):
    """The order of rows by episode and step (None if they are sorted), and which are last in an episode."""

    order: Int[np.ndarray, " rows"] | None
    last: Bool[np.ndarray, " rows"]
    gaps: int  # how often a step number is missing


class ParquetTable:
    """A Parquet file read one column at a time, to save memory; it looks like an Arrow table."""

    def __init__(self, path: check.Path) -> None:
        self._path = path
        with check.translate_errors(path, "Parquet"):
            self._file = parquet.open_file(path)
            self.column_names: list[str] = list(self._file.schema_arrow.names)
            self.num_rows: int = self._file.metadata.num_rows
        self._read: set[str] = set()

    def column(self, name: str) -> pa.ChunkedArray:
        beside = 8 * self.num_rows * len(self._read - {name})
        with check.translate_errors(self._path, "Parquet"):
            size = os.stat(self._path).st_size
            table = parquet.read_columns(self._path, self._file, [name], file_bytes=size, beside=beside)
            if table.num_rows != self.num_rows:
                raise ValueError(f"column '{name}' has {table.num_rows} of {self.num_rows} rows")
        self._read.add(name)
        return table.column(name)


Table: TypeAlias = pa.Table | ParquetTable


def load(path: check.Path, columns: Columns | None = None, *, n_actions: int | None = None) -> Episodes:
    """Episodes of a table whose rows may stand in any order."""
    table = _open_table(path)
    present = _csv_header(path)[1] if table is None else table.column_names
    check.columns(path, present)
    found = (columns or Columns()).find(path, present)
    wanted = list(dict.fromkeys(name for role in found.values() for name in role.names))
    doubled = next((name for name in wanted if present.count(name) > 1), None)
    if doubled is not None:
        raise InputError(f"{path}: has two columns named '{doubled}'; give every column a name of its own")
    return _assemble(path, table or _read_csv(path, wanted), found, present, n_actions)


def _open_table(path: check.Path) -> Table | None:
    """What is no CSV file."""
    with check.translate_errors(path, "a table"), open_unpacked(path) as file:
        head = file.read(64)
    if head.startswith(b"PAR1"):
        return ParquetTable(path)
    return read_records(path) if is_json(head) else None


def load_frame(frame: Any, columns: Columns | None = None, *, n_actions: int | None = None) -> Episodes:
    """Episodes of a pandas or polars DataFrame, an Arrow table, or a mapping from names to columns."""
    table, name = _as_table(frame), "DataFrame"
    doubled = next((column for column in table.column_names if table.column_names.count(column) > 1), None)
    if doubled is not None:
        raise InputError(f"{name}: has two columns named '{doubled}'; give every column a name of its own")
    present = table.column_names
    return _assemble(name, table, (columns or Columns()).find(name, present), present, n_actions)


def _as_table(frame: Any) -> pa.Table:
    """An Arrow table from a DataFrame, without importing pandas or polars."""
    try:
        if isinstance(frame, pa.Table):
            return frame
        if hasattr(frame, "to_arrow"):  # polars
            return frame.to_arrow()
        if isinstance(frame, Mapping):
            return pa.table({name: list(values) for name, values in frame.items()})
        return pa.Table.from_pandas(frame.rename(columns=str), preserve_index=False)
    except (AttributeError, TypeError, pa.ArrowException) as error:
        raise InputError(
            f"DataFrame: a {type(frame).__name__} cannot be read as a table ({error}); give a pandas or "
            "polars DataFrame, an Arrow table, or a mapping from names to columns"
        ) from error


def _assemble(
    path: check.Path,
    table: Table,
    found: dict[str, ColumnMatch],
    present: Sequence[str],
    n_actions: int | None,
) -> Episodes:
    check.not_empty(path, table.num_rows)
    fields: dict[str, np.ndarray] = {
        "observations": _read_vectors(path, table, found["observation"]),
        "rewards": _read_numbers(path, table, found["reward"].names[0]),
    }
    if "next_observation" in found:
        fields["next_observations"] = _read_vectors(path, table, found["next_observation"])
    if "log_prob" in found:
        fields["log_probs"] = _read_numbers(path, table, found["log_prob"].names[0])
    if "propensity" in found:
        fields["propensities"] = _read_numbers(path, table, found["propensity"].names[0])
    fields["actions"], n_actions = _read_actions(path, table, found["action"], n_actions)

    terminated, truncated = (
        _read_flags(path, table, found.get(role)) for role in ("terminated", "truncated")
    )
    rows = _order_rows(path, table, found, terminated | truncated)
    if rows.order is not None:
        fields = {name: values[rows.order] for name, values in fields.items()}
        terminated = terminated[rows.order]
    fields |= {"terminals": terminated, "timeouts": rows.last & ~terminated}
    roles = {role: match.names for role, match in found.items()}
    used = {name for names in roles.values() for name in names}
    unused = tuple(name for name in present if name not in used)
    return assemble(
        path,
        fields,
        n_actions=n_actions,
        notes=_list_assumptions(found, rows),
        names=roles | ({"unused": unused} if unused else {}),
    )


def _order_rows(
    path: check.Path, table: Table, found: dict[str, ColumnMatch], done: Bool[np.ndarray, " rows"]
) -> RowOrder:
    """Rows by episode and step, each step once, no episode longer than its end."""
    step = _read_steps(path, table, found["step"].names[0]) if "step" in found else None
    if "episode" not in found:
        # File order; an episode begins after a done flag, and where the step number decreases.
        begins = np.zeros(len(done), bool)
        begins[1:] = done[:-1]
        if step is not None:
            begins[1:] |= step[1:] <= step[:-1]
        last = np.append(begins[1:], True)
        return RowOrder(None, last, _count_gaps(step, last))

    name = found["episode"].names[0]
    code, labels = _encode_episodes(path, table, name)
    order = np.argsort(code, kind="stable") if step is None else np.lexsort((step, code))
    code, done = code[order], done[order]
    last = np.append(code[1:] != code[:-1], True)
    if step is not None:
        step = step[order]
        twice = ~last[:-1] & (step[1:] == step[:-1])
        if twice.any():
            row = int(np.argmax(twice))
            raise InputError(
                f"{path}: episode {labels[code[row]]!r} has step {step[row]} twice "
                f"(rows {order[row]} and {order[row + 1]}, counting from 0); keep one of them"
            )
    early = done & ~last
    if early.any():
        row = int(np.argmax(early))
        raise InputError(
            f"{path}: episode {labels[code[row]]!r} goes on after its end in row {order[row]} "
            f"(counting from 0); give each episode an id of its own in '{name}', or put its rows in order"
        )
    in_order = bool((order[1:] > order[:-1]).all())
    return RowOrder(None if in_order else order, last, _count_gaps(step, last))


def _count_gaps(step: Shaped[np.ndarray, " rows"] | None, last: Bool[np.ndarray, " rows"]) -> int:
    """How often a step number is left out; times of the clock have no such gaps."""
    if step is None or step.dtype.kind not in "iu":
        return 0
    return int((~last[:-1] & (np.diff(step) != 1)).sum())


def _list_assumptions(found: dict[str, ColumnMatch], rows: RowOrder) -> tuple[str, ...]:
    """What was assumed because of missing columns and rows."""
    notes = []
    if "episode" not in found and "step" not in found:
        cuts = [found[role].names[0] for role in ("terminated", "truncated") if role in found]
        where = " and ".join(f"'{name}'" for name in cuts)
        notes.append(
            f"no episode column: rows are read in order, and episodes end by {where}"
            if cuts
            else "no episode column: the whole file is read as one episode"
        )
    if "terminated" not in found:
        notes.append("no column says which episodes terminated: all are read as cut off by a time limit")
    elif found["terminated"].names[0].lower() in ("done", "dones") and "truncated" not in found:
        notes.append(f"'{found['terminated'].names[0]}' is read as termination, not as a time limit")
    if rows.gaps:
        name = found["step"].names[0]
        notes.append(f"'{name}' leaves out numbers in {rows.gaps} places: steps are read as consecutive")
    return tuple(notes)


def _read_actions(
    path: check.Path, table: Table, found: ColumnMatch, n_actions: int | None
) -> tuple[np.ndarray, int | None]:
    kind = table.column(found.names[0]).type
    whole = found.single and (pa.types.is_integer(kind) or pa.types.is_boolean(kind))
    if len(found.names) == 1 and not _is_list(kind) and (whole or n_actions is not None):
        return check.action_ids(path, found.names[0], _to_array(path, table, found.names[0]), n_actions)
    return _read_vectors(path, table, found), n_actions


def _read_vectors(path: check.Path, table: Table, found: ColumnMatch) -> Float[np.ndarray, "rows size"]:
    """Columns side by side, or the lists of a single column."""
    if len(found.names) == 1 and _is_list(table.column(found.names[0]).type):
        return _read_lists(path, table, found.names[0])
    values = np.empty((table.num_rows, len(found.names)), np.float32)
    for index, name in enumerate(found.names):
        values[:, index] = _read_numbers(path, table, name)
    return values


def _read_lists(path: check.Path, table: Table, name: str) -> Float[np.ndarray, "rows size"]:
    column = _column_without_nulls(path, table, name)
    lengths = pc.list_value_length(column).to_numpy()
    if (lengths != lengths[0]).any() or lengths[0] == 0:
        row = int(np.argmax(lengths != lengths[0]))
        raise InputError(
            f"{path}: column '{name}' has a list of {lengths[row]} numbers in row {row} (rows count from 0), "
            f"but one of {lengths[0]} in row 0; all must have the same length, at least 1"
        )
    flat = pa.table({name: pc.list_flatten(column)})
    return _read_numbers(path, flat, name, per_row=int(lengths[0])).reshape(len(lengths), -1)


def _read_numbers(
    path: check.Path, table: Table, name: str, *, per_row: int = 1
) -> Float[np.ndarray, " rows"]:
    values = _to_array(path, table, name, per_row=per_row)
    return check.finite(path, name, values, at=np.arange(len(values)) // per_row)


def _read_flags(path: check.Path, table: Table, found: ColumnMatch | None) -> Bool[np.ndarray, " rows"]:
    if found is None:
        return np.zeros(table.num_rows, bool)
    return check.flags(path, found.names[0], _to_array(path, table, found.names[0]))


def _read_steps(path: check.Path, table: Table, name: str) -> Shaped[np.ndarray, " rows"]:
    """Step numbers, or times: anything with an order that is not text."""
    column = _column_without_nulls(path, table, name)
    if pa.types.is_temporal(column.type):
        return column.to_numpy()
    values = _to_array(path, table, name)
    # Checked only: in single precision, clock times would collide.
    check.finite(path, name, values)
    return values


def _encode_episodes(path: check.Path, table: Table, name: str) -> tuple[Int[np.ndarray, " rows"], list]:
    """Each row's episode as a number in the order of the ids, and the ids."""
    with check.translate_errors(path, "a table"):
        column = _column_without_nulls(path, table, name).combine_chunks().dictionary_encode()
        order = pc.array_sort_indices(column.dictionary).to_numpy()
        labels = column.dictionary.take(pa.array(order)).to_pylist()
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return rank[column.indices.to_numpy()], labels


def _to_array(path: check.Path, table: Table, name: str, *, per_row: int = 1) -> Shaped[np.ndarray, " rows"]:
    """A column of numbers or flags as an array."""
    column = _column_without_nulls(path, table, name, per_row=per_row)
    if pa.types.is_decimal(column.type):
        column = column.cast(pa.float64())
    if not (
        pa.types.is_integer(column.type)
        or pa.types.is_floating(column.type)
        or pa.types.is_boolean(column.type)
    ):
        with check.translate_errors(path, "a table"):
            values = column.to_pylist()
        row = next((row for row, value in enumerate(values) if not _is_number(value)), 0)
        raise InputError(
            f"{path}: column '{name}' has type {column.type} and holds {values[row]!r} "
            f"in row {row // per_row} (rows count from 0); it must hold numbers"
        )
    return column.to_numpy()


def _column_without_nulls(path: check.Path, table: Table, name: str, *, per_row: int = 1) -> pa.ChunkedArray:
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


def _csv_header(path: check.Path) -> tuple[str, list[str]]:
    """The character between columns, and their names."""
    with (
        check.translate_errors(path, "CSV"),
        io.TextIOWrapper(open_unpacked(path), encoding="utf-8-sig", newline="") as file,
    ):
        line = file.readline(LONGEST_HEADER)
        delimiter = max(DELIMITERS, key=line.count)
        return delimiter, [name.strip() for name in next(csv.reader([line], delimiter=delimiter), [])]


def _read_csv(path: check.Path, names: Sequence[str]) -> pa.Table:
    delimiter, present = _csv_header(path)
    with check.translate_errors(path, "CSV"), open_unpacked(path) as file:
        return pyarrow.csv.read_csv(
            file,
            # The header is parsed here, so that blanks around names are ignored.
            read_options=pyarrow.csv.ReadOptions(column_names=present, skip_rows=1),
            parse_options=pyarrow.csv.ParseOptions(delimiter=delimiter),
            convert_options=pyarrow.csv.ConvertOptions(include_columns=list(names)),
        )
