"""Loading logged steps from HDF5 against reading the bytes of the file, in the same run.

    python benchmarks/loading.py --json loading.json

The files are written here in D4RL's layout, with HalfCheetah's sizes: one plain, one in the packed form
(chunks under gzip) that D4RL's own files have. All are in the cache of the operating system when times are
taken, and the shortest of `--repeats` counts. Packed files are measured against h5py reading the same
fields, because unpacking takes far longer than reading.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from telling import tell_rows

from vlbm.data.readers import load

OBSERVATIONS, ACTIONS, LENGTH = 17, 6, 1000
LIMIT = 3.0


def write(path: Path, steps: int, **storage: Any) -> None:
    """Steps of a random walk in D4RL's fields, the next observations among them."""
    random = np.random.default_rng(0)
    observation = random.normal(size=(steps + 1, OBSERVATIONS)).astype(np.float32)
    timeouts = np.zeros(steps, bool)
    timeouts[LENGTH - 1 :: LENGTH] = True
    fields = {
        "observations": observation[:-1],
        "next_observations": observation[1:],
        "actions": random.uniform(-1, 1, (steps, ACTIONS)).astype(np.float32),
        "rewards": random.normal(size=steps).astype(np.float32),
        "terminals": np.zeros(steps, bool),
        "timeouts": timeouts,
    }
    with h5py.File(path, "w") as file:
        for name, values in fields.items():
            file.create_dataset(name, data=values, **storage)


def read_bytes(path: Path) -> None:
    path.read_bytes()


def look_at_bytes(path: Path) -> None:
    """Without keeping them: a floor that nothing which keeps the numbers can reach."""
    buffer = memoryview(bytearray(1 << 20))
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def read_fields(path: Path) -> None:
    with h5py.File(path, "r") as file:
        for values in file.values():
            values[()]


def shortest(call: Callable[[Path], Any], path: Path, repeats: int) -> float:
    seconds = []
    for _ in range(repeats + 1):  # the first one fills the cache
        began = time.perf_counter()
        call(path)
        seconds.append(time.perf_counter() - began)
    return min(seconds[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=2_000_000, help="logged steps (default: 2000000)")
    parser.add_argument("--repeats", type=int, default=5, help="times of each kind (default: 5)")
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()

    rows = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.hdf5"

        def compare(kind: str, steps: int, against: Mapping[str, Callable[[Path], None]], goal: bool) -> None:
            loading = shortest(load, path, arguments.repeats)
            for what, reading in against.items():
                baseline = shortest(reading, path, arguments.repeats)
                rows.append(
                    {
                        "name": f"loading {kind} HDF5 / {what}",
                        "value": loading / baseline,
                        "unit": "times",
                        "target": f"< {LIMIT:g}" if goal else "none",
                        "met": loading / baseline < LIMIT if goal else None,
                        "detail": f"{steps:,} steps, {path.stat().st_size / 1e6:.0f} MB: "
                        f"{loading:.3f} s against {baseline:.3f} s",
                    }
                )

        write(path, arguments.steps)
        fields: dict[str, Callable[[Path], None]] = {"reading its fields with h5py": read_fields}
        compare("plain", arguments.steps, {"reading its bytes": read_bytes, **fields}, True)
        compare("plain", arguments.steps, {"passing its bytes through a buffer": look_at_bytes}, False)
        # Packing takes long, and fewer steps say as much.
        write(path, arguments.steps // 10, compression="gzip", compression_opts=1)
        compare("packed", arguments.steps // 10, fields, True)
    tell_rows(rows, arguments.json)


if __name__ == "__main__":
    main()
