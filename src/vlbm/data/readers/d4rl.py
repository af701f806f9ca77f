"""D4RL's HDF5 files, in all their layouts."""

from __future__ import annotations

import h5py

from vlbm.data.episodes import Episodes
from vlbm.data.readers import check, hdf5
from vlbm.data.readers.transitions import FIELDS, REQUIRED, Allocate, allocate_in_memory, assemble
from vlbm.errors import InputError


def load(
    path: check.Path,
    *,
    n_actions: int | None = None,
    allocate: Allocate = allocate_in_memory,
    limit: int | None = None,
) -> Episodes:
    """Episodes of an HDF5 file with D4RL's fields; other fields and groups are ignored.

    Needs `observations`, `actions`, `rewards` and `terminals`; uses `timeouts`, `next_observations`
    and `infos/action_log_probs` where they are. `allocate` makes the output arrays, of up to `limit` bytes.
    """
    with hdf5.open_file(path) as file:
        found = {name: hdf5.find(path, file, name) for name in FIELDS}
        fields = {name: item for name, item in found.items() if isinstance(item, h5py.Dataset)}
        with check.translate_errors(path, "HDF5"):
            # Checked inside, because h5py reads a damaged header only when its type is accessed.
            for name, item in fields.items():
                check.numeric(path, name, item.dtype)
            # Names that are no text come as bytes.
            names = [str(name) for name in file]
            others = [f"{name}/" if isinstance(found.get(name), h5py.Group) else name for name in names]
        if "episode_0" in others:
            raise InputError(
                f"{path}: is one part of a Minari data set; give the data set's directory instead"
            )
        check.present(path, {*fields, *(name for name in others if name not in FIELDS)}, REQUIRED)
        for name, item in fields.items():
            if item.shape is None:
                raise InputError(f"{path}: field '{name}' is empty; fetch or write the file again")
        hdf5.check_claims(path, fields, limit=limit)
        return assemble(path, fields, n_actions=n_actions, allocate=allocate)


def holds_steps(path: check.Path) -> bool:
    """Whether an HDF5 file has fields of recorded steps; a damaged one counts, so that `load` can say why."""
    try:
        with h5py.File(path, "r") as file:
            # Looking for the links alone: following them could lead anywhere.
            return any(file.id.links.exists(name) for name in (b"observations", b"actions"))
    except Exception:
        return True
