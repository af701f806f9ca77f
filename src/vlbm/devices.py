"""All cores at once: a batch is split over host devices, one for every core."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

AXIS = "batch"
# A device with fewer windows than this spends its time waiting for the others.
SMALLEST_SHARE = 16

# Into how many parts the program being traced is split; 1 outside of `split`.
_parts: ContextVar[int] = ContextVar("parts", default=1)


def use_cores(count: int | None = None) -> None:
    """Make a device of every core (or of `count`), so that training splits its batches over them.

    Must come before JAX computes anything; afterwards the devices are settled and nothing changes. The
    command line calls it; `VLBM_CORES` limits the number.
    """
    wanted = count or int(os.environ.get("VLBM_CORES") or len(os.sched_getaffinity(0)))
    try:
        jax.config.update("jax_num_cpu_devices", max(wanted, 1))
    except RuntimeError:  # something has been computed already
        return


def parts_for(batch: int) -> int:
    """Over how many devices a batch can be split evenly, with enough left for each."""
    most = min(len(jax.local_devices()), max(batch // SMALLEST_SHARE, 1))
    return max(parts for parts in range(1, most + 1) if batch % parts == 0)


def split(function: Callable[..., Any], parts: int) -> Callable[..., Any]:
    """The function run on several devices at once: all get the same arguments and must give the same result.

    Within it `share` takes a device's part of a batch, and `everywhere` sums over the devices.
    """
    if parts == 1:
        return function

    def local(*arguments: Any) -> Any:
        token = _parts.set(parts)
        try:
            return function(*arguments)
        finally:
            _parts.reset(token)

    whole = PartitionSpec()
    return jax.shard_map(local, mesh=_mesh(parts), in_specs=whole, out_specs=whole, check_vma=False)


def placed(tree: Any, parts: int) -> Any:
    """Every array on all of the devices, so that no call has to bring it there."""
    if parts == 1:
        return tree
    everywhere_whole = NamedSharding(_mesh(parts), PartitionSpec())
    return jax.tree.map(
        lambda leaf: jax.device_put(leaf, everywhere_whole) if isinstance(leaf, jax.Array) else leaf, tree
    )


def gathered(tree: Any) -> Any:
    """Every array on the first device alone: what follows is then computed once, not on every device."""

    def first(leaf: Any) -> Any:
        several = isinstance(leaf, jax.Array) and len(leaf.sharding.device_set) > 1
        return jax.device_put(leaf.addressable_data(0), jax.local_devices()[0]) if several else leaf

    return jax.tree.map(first, tree)


def share(tree: Any, *, axis: int) -> Any:
    """This device's part of a batch that all have drawn whole: with more devices it is the same batch."""
    parts = _parts.get()
    if parts == 1:
        return tree

    def part(leaf: Any) -> Any:
        size = leaf.shape[axis] // parts
        return jax.lax.dynamic_slice_in_dim(leaf, jax.lax.axis_index(AXIS) * size, size, axis)

    return jax.tree.map(part, tree)


def everywhere(tree: Any) -> Any:
    """The sum over all devices."""
    return tree if _parts.get() == 1 else jax.lax.psum(tree, AXIS)


def _mesh(parts: int) -> Mesh:
    return Mesh(np.array(jax.local_devices()[:parts]), (AXIS,))
