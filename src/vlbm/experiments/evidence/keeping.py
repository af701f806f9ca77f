"""Evidence on disk: arrays as safetensors, the rest as JSON in its header."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vlbm.errors import InputError
from vlbm.experiments.evidence.gathering import Evidence, ModelEvidence
from vlbm.experiments.evidence.imagined import PolicyEvidence
from vlbm.experiments.evidence.latents import LatentMap
from vlbm.experiments.evidence.logged import LoggedSummary
from vlbm.results.diagnostics.calibration import Calibration
from vlbm.storage import load_arrays, read_information, save_arrays

TYPES = {
    kind.__name__: kind
    for kind in (Evidence, PolicyEvidence, ModelEvidence, Calibration, LatentMap, LoggedSummary)
}


def save_evidence(path: Path, evidence: Any) -> None:
    """Any of the types above."""
    arrays: dict[str, np.ndarray] = {}
    packed = _packed(evidence, arrays)
    save_arrays(path, arrays, information={"evidence": packed})


def load_evidence(path: Path) -> Any:
    """What was saved; of another version, an error that says how to make it again."""
    information = read_information(path)
    try:
        return _unpacked(information["evidence"], load_arrays(path))
    except (KeyError, TypeError) as error:
        raise InputError(
            f"{path}: was written by another version of vlbm ({error}); run evaluate or compare again"
        ) from None


def _packed(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    """JSON with the names of arrays where they belong."""
    if isinstance(value, np.ndarray):
        name = f"{len(arrays):05d}"
        arrays[name] = value
        return {"array": name}
    if is_dataclass(value):
        inner = {part.name: _packed(getattr(value, part.name), arrays) for part in fields(value)}
        return {"type": type(value).__name__, "fields": inner}
    if isinstance(value, dict):
        return {"mapping": {name: _packed(part, arrays) for name, part in value.items()}}
    if isinstance(value, tuple | list):
        return [_packed(part, arrays) for part in value]
    return value


def _unpacked(packed: Any, arrays: dict[str, np.ndarray]) -> Any:
    if isinstance(packed, list):
        return tuple(_unpacked(part, arrays) for part in packed)
    if not isinstance(packed, dict):
        return packed
    if "array" in packed:
        return arrays[packed["array"]]
    inner = packed["mapping"] if "mapping" in packed else packed["fields"]
    found = {name: _unpacked(part, arrays) for name, part in inner.items()}
    return found if "mapping" in packed else TYPES[packed["type"]](**found)
