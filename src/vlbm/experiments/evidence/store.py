"""Saving and loading diagnostics: arrays as safetensors, the rest as JSON in its header."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vlbm.errors import InputError
from vlbm.experiments.evidence.collect import Evidence, ModelEvidence
from vlbm.experiments.evidence.latents import LatentMap
from vlbm.experiments.evidence.logged import LoggedSummary
from vlbm.experiments.evidence.recorder import PolicyEvidence
from vlbm.results.diagnostics.calibration import Calibration
from vlbm.storage import load_arrays, read_information, save_arrays

TYPES = {
    kind.__name__: kind
    for kind in (Evidence, PolicyEvidence, ModelEvidence, Calibration, LatentMap, LoggedSummary)
}


def save_evidence(path: Path, evidence: Any) -> None:
    """Any of the types above."""
    arrays: dict[str, np.ndarray] = {}
    packed = _pack(evidence, arrays)
    save_arrays(path, arrays, information={"evidence": packed})


def load_evidence(path: Path) -> Any:
    """What was saved; an error if another version wrote it."""
    information = read_information(path)
    try:
        return _unpack(information["evidence"], load_arrays(path))
    except (KeyError, TypeError) as error:
        raise InputError(
            f"{path}: was written by another version of vlbm ({error}); run evaluate or compare again"
        ) from None


def _pack(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    """JSON with the names of arrays in their places."""
    if isinstance(value, np.ndarray):
        name = f"{len(arrays):05d}"
        arrays[name] = value
        return {"array": name}
    if is_dataclass(value):
        inner = {part.name: _pack(getattr(value, part.name), arrays) for part in fields(value)}
        return {"type": type(value).__name__, "fields": inner}
    if isinstance(value, dict):
        return {"mapping": {name: _pack(part, arrays) for name, part in value.items()}}
    if isinstance(value, tuple | list):
        return [_pack(part, arrays) for part in value]
    return value


def _unpack(packed: Any, arrays: dict[str, np.ndarray]) -> Any:
    if isinstance(packed, list):
        return tuple(_unpack(part, arrays) for part in packed)
    if not isinstance(packed, dict):
        return packed
    if "array" in packed:
        return arrays[packed["array"]]
    inner = packed["mapping"] if "mapping" in packed else packed["fields"]
    found = {name: _unpack(part, arrays) for name, part in inner.items()}
    return found if "mapping" in packed else TYPES[packed["type"]](**found)
