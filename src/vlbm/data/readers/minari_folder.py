"""A Minari data set's folder: its metadata checked against one schema, its episodes read one by one.

Minari's own reader would follow links out of the files, and build the environment that the metadata names.
"""

from __future__ import annotations

import io
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from vlbm import limits
from vlbm.data.readers import check, hdf5
from vlbm.data.readers.minari_tables import read_table
from vlbm.errors import InputError, require

KIND = "a Minari data set"
METADATA = "metadata.json"
MAIN_FILE = "main_data.hdf5"
MOST_TEXT = 1 << 26  # bytes of the metadata
MOST_NUMBERS = 1 << 20  # in a vector of a space; more would not be learnt from
DEEPEST = 16  # spaces in spaces in spaces
SMALLEST_IMAGE = 32  # pixels; Minari stores smaller ones as numbers


class Episode(NamedTuple):
    """Arrays as stored, in dictionaries and tuples where the space is one."""

    id: int
    observations: Any
    actions: Any
    rewards: Any
    terminations: Any


class MinariFolder:
    """A data set on disk, with the properties of a `minari.MinariDataset` that `minari.read` uses."""

    def __init__(self, path: check.Path, folder: Path) -> None:
        minari = require("minari", extra="minari", purpose=f"Reading the Minari data set {path}")
        from minari.serialization import deserialize_space

        self._path, self._folder = path, folder
        metadata = _read_metadata(path, folder)
        version = metadata.get("minari_version")
        if not isinstance(version, str) or version not in minari.supported_dataset_versions:
            raise _wrong(
                path,
                "minari_version",
                version,
                f"one of {', '.join(sorted(minari.supported_dataset_versions))}",
            )
        self._format: Any = metadata.get("data_format")
        if self._format not in ("hdf5", "parquet", "arrow"):
            raise _wrong(path, "data_format", self._format, "hdf5, parquet or arrow")
        self.total_episodes: int = metadata.get("total_episodes")  # type: ignore[assignment]
        if not _is_whole(self.total_episodes, 0):
            raise _wrong(path, "total_episodes", self.total_episodes, "a whole number")
        self._compressed_images = bool(metadata.get("jpeg_encoding", True))
        spaces = []
        for name in ("observation_space", "action_space"):
            described = _parse_space(path, name, metadata.get(name))
            with check.translate_errors(path, KIND):
                spaces.append(deserialize_space(described))
        self.observation_space, self.action_space = spaces

    def iterate_episodes(self) -> Iterator[Episode]:
        return self._iterate_hdf5() if self._format == "hdf5" else self._iterate_tables()

    def _iterate_hdf5(self) -> Iterator[Episode]:
        main = self._folder / MAIN_FILE
        limits.check_inside(self._folder, main)
        size, claimed = os.path.getsize(main) if main.exists() else 0, 0

        def read(group: Any, name: str, space: Any = None) -> Any:
            nonlocal claimed
            item = hdf5.find(self._path, group, name) if isinstance(group, h5py.Group) else None
            parts = _parts(space, "_index_{}")
            if parts is not None and isinstance(item, h5py.Group):
                return _rejoin(space, [read(item, key, part) for key, part in parts])
            if parts is not None or not isinstance(item, h5py.Dataset) or item.shape is None:
                raise InputError(
                    f"{self._path}: field '{name}' of an episode is missing, or not as {METADATA} says; "
                    "write the data set again"
                )
            with check.translate_errors(self._path, KIND):
                claimed += hdf5.count_bytes(item)
                limits.check_claim(self._path, claimed, file_bytes=size, what="its episodes")
                if self._holds_images(space):
                    # One by one: any number of rows could name the same bytes.
                    return self._decode_images(space, (item[row] for row in range(len(item))))
                check.numeric(self._path, name, item.dtype)
                return item[()]

        with hdf5.open_file(main, kind=KIND) as file:
            for index in range(self.total_episodes):
                group = hdf5.find(self._path, file, f"episode_{index}")
                yield Episode(
                    index,
                    read(group, "observations", self.observation_space),
                    read(group, "actions", self.action_space),
                    read(group, "rewards"),
                    read(group, "terminations"),
                )

    def _iterate_tables(self) -> Iterator[Episode]:
        """One folder for each episode; the last row has an observation, and padding elsewhere."""
        for index in range(self.total_episodes):
            table = read_table(self._path, self._folder, str(index), self._format)

            def read(name: str, space: Any = None, table: pa.Table = table) -> Any:
                with check.translate_errors(self._path, KIND):
                    return self._decode_column(space, table.column(name).combine_chunks())

            yield Episode(
                index,
                read("observations", self.observation_space),
                _without_last(read("actions", self.action_space)),
                read("rewards")[:-1],
                read("terminations")[:-1],
            )

    def _decode_column(self, space: Any, column: pa.Array) -> Any:
        if isinstance(column, pa.ChunkedArray):
            column = pa.concat_arrays(column.chunks)
        parts = _parts(space, "{}")
        if parts is not None:
            return _rejoin(space, [self._decode_column(part, column.field(key)) for key, part in parts])
        if self._holds_images(space):
            return self._decode_images(space, column.to_pylist())
        if column.null_count:
            raise ValueError("values are missing")
        if not hasattr(column, "flatten") or not hasattr(column.type, "value_type"):
            return column.to_numpy(zero_copy_only=False)
        rows = len(column)
        if rows and pc.count_distinct(pc.list_value_length(column)).as_py() != 1:
            raise ValueError("rows differ in length")
        values = column.flatten()
        if values.null_count:
            raise ValueError("values are missing")
        return values.to_numpy(zero_copy_only=False).reshape(rows, -1 if rows else 1)

    def _holds_images(self, space: Any) -> bool:
        """Minari's own rule for which arrays are stored as JPEG."""
        from gymnasium import spaces

        return (
            self._compressed_images
            and isinstance(space, spaces.Box)
            and len(space.shape) in (2, 3)
            and min(space.shape[:2]) >= SMALLEST_IMAGE
            and space.dtype == np.uint8
            and bool((space.low == 0).all() and (space.high == 255).all())
        )

    def _decode_images(self, space: Any, encoded: Any) -> np.ndarray:
        from PIL import Image

        images = []
        with check.translate_errors(self._path, KIND):
            for content in encoded:
                data = content if isinstance(content, bytes) else np.asarray(content, np.uint8).tobytes()
                image = Image.open(io.BytesIO(data), formats=("JPEG",))
                # Checked before it is unpacked.
                if image.size[::-1] != space.shape[:2]:
                    raise ValueError(f"an image has {image.size} pixels where {space.shape} belong")
                images.append(np.asarray(image, np.uint8).reshape(space.shape))
        return np.stack(images) if images else np.empty((0, *space.shape), np.uint8)


def _read_metadata(path: check.Path, folder: Path) -> dict[str, Any]:
    file = folder / METADATA
    limits.check_inside(folder, file)
    with limits.open_regular(file) as opened, check.translate_errors(path, KIND):
        limits.check_claim(path, os.fstat(opened.fileno()).st_size, what=METADATA, limit=MOST_TEXT)
        metadata = json.loads(opened.read())
    if not isinstance(metadata, dict):
        raise InputError(f"{path}: {METADATA} holds no fields; fetch the data set again")
    return metadata


def _parse_space(path: check.Path, name: str, text: object) -> dict[str, Any]:
    """The space that Minari wrote as JSON in JSON, if building it is harmless."""
    if not isinstance(text, str):
        raise InputError(
            f"{path}: {METADATA} has no {name}, and the environment that it names is not built to find out; "
            "write the data set again with both spaces"
        )
    with check.translate_errors(path, KIND):
        described = json.loads(text)
    if not _is_space(described, DEEPEST):
        raise _wrong(
            path, name, text, "a space of Gymnasium as Minari writes it, of at most a million numbers"
        )
    return described


def _is_space(described: Any, deepest: int) -> bool:
    if not isinstance(described, dict) or deepest == 0:
        return False
    kind, inner = described.get("type"), described.get("subspaces")
    if kind == "Tuple":
        return isinstance(inner, list) and all(_is_space(part, deepest - 1) for part in inner)
    if kind == "Dict":
        return isinstance(inner, dict) and all(_is_space(part, deepest - 1) for part in inner.values())
    if kind == "Box":
        return _is_shape(described.get("shape")) and _is_number_type(described.get("dtype"))
    if kind == "Discrete":
        return _is_whole(described.get("n"), 1) and _is_whole(described.get("start"), -(2**62))
    if kind == "MultiDiscrete":
        return isinstance(described.get("nvec"), list) and _is_number_type(described.get("dtype"))
    if kind == "MultiBinary":
        size = described.get("n")
        return _is_shape(size if isinstance(size, list) else [size])
    return kind == "Text"


def _is_shape(shape: Any) -> bool:
    return (
        isinstance(shape, list)
        and all(_is_whole(size, 0) for size in shape)
        and math.prod(shape) <= MOST_NUMBERS
    )


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < 2**62


def _is_number_type(name: Any) -> bool:
    try:
        return isinstance(name, str) and np.dtype(name).kind in "fiub"
    except (TypeError, ValueError, SyntaxError):
        return False


def _parts(space: Any, numbered: str) -> list[tuple[str, Any]] | None:
    """The parts of a space by the names under which they are stored; None if it has no parts."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        return list(space.items())
    if isinstance(space, spaces.Tuple):
        return [(numbered.format(index), part) for index, part in enumerate(space)]
    return None


def _rejoin(space: Any, values: list[Any]) -> Any:
    from gymnasium import spaces

    return dict(zip(space, values, strict=True)) if isinstance(space, spaces.Dict) else tuple(values)


def _without_last(values: Any) -> Any:
    if isinstance(values, dict):
        return {name: _without_last(value) for name, value in values.items()}
    return tuple(map(_without_last, values)) if isinstance(values, tuple) else values[:-1]


def _wrong(path: check.Path, name: str, found: object, wanted: str) -> InputError:
    return InputError(f"{path}: {METADATA}: {name} is {found!r:.80}, not {wanted}; fetch the data set again")
