"""All cores at once: a batch is split over host devices, one for every core."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding
from jaxtyping import Array, Int, PRNGKeyArray

AXIS = "batch"
ARRAYS = (jax.Array, np.ndarray)  # of a trained model, or of one that was loaded
WHOLE, LOTS = PartitionSpec(), PartitionSpec(AXIS)
# A group of fewer windows than this would keep no device busy, and says little of the average window.
SMALLEST_GROUP = 32

# Into how many parts the program being traced is split; 1 outside of `split`.
_parts: ContextVar[int] = ContextVar("parts", default=1)


def groups_for(batch: int) -> int:
    """Into how many groups of equal size the windows of a batch go.

    A group is normalised by its own averages, whichever device it is on: they never meet for it.
    """
    return max(groups for groups in range(1, max(batch // SMALLEST_GROUP, 1) + 1) if batch % groups == 0)


def own_groups(batch: int) -> int:
    """How many of a whole batch's groups are this device's."""
    return groups_for(batch) // _parts.get()


def parts_for(batch: int, *, smallest: int = 1) -> int:
    """Over how many devices a batch can be split evenly, with at least the smallest share for each."""
    most = min(len(jax.local_devices()), max(batch // smallest, 1))
    return max(parts for parts in range(1, most + 1) if batch % parts == 0)


def split(
    function: Callable[..., Any],
    parts: int,
    *,
    in_specs: Any = WHOLE,
    out_specs: Any = WHOLE,
) -> Callable[..., Any]:
    """The function run on several devices at once; unless told otherwise all get and give the same.

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

    return jax.shard_map(local, mesh=_mesh(parts), in_specs=in_specs, out_specs=out_specs, check_vma=False)


def in_lots(function: Callable[[Any, Any], Any], lots: int) -> Callable[[Any, Any], Any]:
    """f(what is the same for all, a lot) run on as many devices as there are lots, which never meet.

    A lot's arrays, and those of the result, are the function's own with an axis of lots before them.
    """

    def local(fixed: Any, lot: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf[None], function(fixed, jax.tree.map(lambda leaf: leaf[0], lot)))

    if lots == 1:
        return local
    return split(local, lots, in_specs=(WHOLE, LOTS), out_specs=LOTS)


def lot_key(key: PRNGKeyArray) -> PRNGKeyArray:
    """A key of this device's own: its episodes have their own luck."""
    return key if _parts.get() == 1 else jax.random.fold_in(key, jax.lax.axis_index(AXIS))


def over_devices(parts: int, spec: PartitionSpec = WHOLE) -> Sharding | None:
    """On so many devices, unless told otherwise the same on each; one needs no arrangement."""
    return NamedSharding(_mesh(parts), spec) if parts > 1 else None


def placed(tree: Any, where: Sharding | None) -> Any:
    """Every array there, so that no call has to bring it; None leaves them where they are."""
    return tree if where is None else _put(tree, lambda leaf: leaf, where)


def brought(tree: Any, where: Sharding | None) -> Any:
    """As `placed`, by way of the host: quicker for many arrays that are on one device so far."""
    return tree if where is None else _put(tree, np.asarray, where)


def gathered(tree: Any) -> Any:
    """Every array on one device alone: what follows is then computed once, not on every device."""

    def first(leaf: Any) -> Any:
        several = isinstance(leaf, jax.Array) and len(leaf.sharding.device_set) > 1
        return leaf.addressable_data(0) if several else leaf

    return jax.tree.map(first, tree)


def released(tree: Any) -> Any:
    """Every array bound to no device: it can be used together with any other."""
    return _put(tree, np.asarray)


def on_device(values: np.ndarray) -> Array:
    """Numbers as JAX keeps them, put there as they are: other ways compile a program for every shape."""
    return jax.device_put(np.asarray(values, np.float32))


def selected(tree: Any, keep: Int[np.ndarray, " kept"]) -> Any:
    """Some places of every array's leading axis, chosen on the host: a compiled gather costs more."""
    return _put(tree, lambda leaf: np.asarray(leaf)[keep])


def _put(tree: Any, change: Callable[[Any], Any], where: Sharding | None = None) -> Any:
    """The tree with every array changed and put there, all in one call: each takes its time."""
    leaves, structure = jax.tree.flatten(tree)
    arrays = [index for index, leaf in enumerate(leaves) if isinstance(leaf, ARRAYS)]
    changed = jax.device_put([change(leaves[index]) for index in arrays], where)
    for index, array in zip(arrays, changed, strict=True):
        leaves[index] = array
    return jax.tree.unflatten(structure, leaves)


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
    if _parts.get() == 1:
        return tree
    # As one vector: devices meet once for every array they sum, and each time wait for the slowest.
    flat, restore = ravel_pytree(tree)
    return restore(jax.lax.psum(flat, AXIS))


def passed_on(tree: Any) -> Any:
    """What the device before this one has; the first gets what the last has."""
    parts = _parts.get()
    to_next = [(device, (device + 1) % parts) for device in range(parts)]
    # As one vector, for the same reason; whole numbers would not keep their kind in it.
    real, whole = eqx.partition(tree, eqx.is_inexact_array)
    flat, restore = ravel_pytree(real)
    real, whole = restore(jax.lax.ppermute(flat, AXIS, to_next)), jax.lax.ppermute(whole, AXIS, to_next)
    return eqx.combine(real, whole)


def _mesh(parts: int) -> Mesh:
    return Mesh(np.array(jax.local_devices()[:parts]), (AXIS,))
