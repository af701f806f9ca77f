"""What an ONNX file refers to, read from its bytes: the runtime would read other files that it names."""

from __future__ import annotations

from collections.abc import Iterator

# Messages within messages, by the number of the field that holds them (onnx.proto3).
TENSOR = "tensor"
INSIDE: dict[str, dict[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: TENSOR, 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: TENSOR, 6: "graph", 10: TENSOR, 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: TENSOR, 2: TENSOR},
    TENSOR: {},
}
EXTERNAL_DATA, DATA_LOCATION = 13, 14
DEEPEST = 50  # graphs in nodes in graphs; a policy has a branch or two


def names_other_files(content: bytes) -> bool:
    """Whether any tensor says that its numbers are elsewhere; ValueError if this is no such file."""
    return _looks_elsewhere(memoryview(content), "model", 0)


def _looks_elsewhere(content: memoryview, kind: str, depth: int) -> bool:
    if depth > 4 * DEEPEST:
        raise ValueError("graphs within graphs without end")
    for field, value in _read_fields(content):
        if kind == TENSOR and (field == EXTERNAL_DATA or (field == DATA_LOCATION and value)):
            return True
        inner = INSIDE[kind].get(field)
        if inner and isinstance(value, memoryview) and _looks_elsewhere(value, inner, depth + 1):
            return True
    return False


def _read_fields(content: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """The fields of one protobuf message: numbers, or bytes that may be messages themselves."""
    place = 0
    while place < len(content):
        tag, place = _read_varint(content, place)
        match tag & 7:
            case 0:
                value, place = _read_varint(content, place)
                yield tag >> 3, value
            case 1:
                place += 8
            case 2:
                size, place = _read_varint(content, place)
                if size > len(content) - place:
                    raise ValueError("it is cut off")
                yield tag >> 3, content[place : place + size]
                place += size
            case 5:
                place += 4
            case other:
                raise ValueError(f"a field of the unknown kind {other}")


def _read_varint(content: memoryview, place: int) -> tuple[int, int]:
    value = 0
    for index in range(10):
        if place + index >= len(content):
            raise ValueError("it is cut off")
        byte = content[place + index]
        value |= (byte & 127) << (7 * index)
        if byte < 128:
            return value, place + index + 1
    raise ValueError("a number without end")
