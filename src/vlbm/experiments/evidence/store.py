"""Saving and loading diagnostics: arrays as safetensors, the rest as JSON in its header."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vlbm.experiments.evidence.collect import Evidence, ModelEvidence
from vlbm.experiments.evidence.latents import LatentMap
from vlbm.experiments.evidence.logged import LoggedSummary
from vlbm.experiments.evidence.recorder import PolicyEvidence
from vlbm.results.diagnostics.calibration import Calibration
from vlbm.schema import check_fields, refuse_damage
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


def load_evidence(path: Path, kind: type = object) -> Any:
    """What was saved; an error if it is damaged, of another kind, or another version wrote it."""
    with refuse_damage(path, "run evaluate or compare again"):
        found = _unpack(read_information(path)["evidence"], load_arrays(path))
        if not isinstance(found, kind):
            raise ValueError(f"it holds no {kind.__name__}")
        check_fields(found)
        if isinstance(found, Evidence):
            _check_lengths(found)
        return found


def _check_lengths(evidence: Evidence) -> None:
    times, dimensions = len(evidence.times), len(evidence.dimensions)
    for name, policy in evidence.policies.items():
        if policy.trajectories.shape[:2] != (times, dimensions):
            raise ValueError(f"the trajectories of '{name}' are not of its times and dimensions")


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
