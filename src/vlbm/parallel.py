"""Every core a device: models train side by side, batches and imagined episodes are split over them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from queue import SimpleQueue
from threading import Event
from typing import Any, TypeVar

import equinox as eqx
import jax
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding
from jaxtyping import Array

Result = TypeVar("Result")

AXIS = "devices"
ARRAYS = (jax.Array, np.ndarray)  # of a trained model, or of one that was loaded
WHOLE, SHARED = PartitionSpec(), PartitionSpec(AXIS)


def count_shards(batch: int, *, smallest: int = 1) -> int:
    """Over how many devices a batch can be split evenly, with at least the smallest share for each."""
    most = min(len(jax.local_devices()), max(batch // smallest, 1))
    return max(shards for shards in range(1, most + 1) if batch % shards == 0)


def map_shards(function: Callable[[Any, Any], Any], shards: int) -> Callable[[Any, Any], Any]:
    """f(what is the same for all, a batch), the batch's leading axis split over devices, which never meet."""
    if shards == 1:
        return function
    specs = (WHOLE, SHARED)
    return jax.shard_map(function, mesh=_mesh(shards), in_specs=specs, out_specs=SHARED, check_vma=False)


class Place:
    """Where a training runs: on one device, or with each batch split over several."""

    def __init__(self, shards: int = 1):
        self.shards = shards
        self._stopped = Event()

    @contextmanager
    def turn(self) -> Iterator[Sharding | None]:
        """Where the next stretch of work has its arrays; None leaves them where they are."""
        self._heed()
        yield over_devices(self.shards)

    def stop(self) -> None:
        """Let nobody begin another stretch."""
        self._stopped.set()

    @property
    def stopped(self) -> bool:
        return self._stopped.is_set()

    def _heed(self) -> None:
        if self.stopped:
            raise KeyboardInterrupt  # meant for all who work here, heard by one


class Turns(Place):
    """Devices lent for a stretch of work at a time, so that three trainings keep two devices busy."""

    def __init__(self, devices: Sequence[jax.Device]):
        super().__init__()
        self._free: SimpleQueue[jax.Device] = SimpleQueue()
        for device in devices:
            self._free.put(device)

    @contextmanager
    def turn(self) -> Iterator[Sharding | None]:
        device = self._free.get()
        try:
            self._heed()
            yield SingleDeviceSharding(device)
        finally:
            self._free.put(device)


def side_by_side(jobs: Sequence[Callable[[Place], Result]], *, batch: int) -> list[Result]:
    """What each job gave, without those that were not begun before Ctrl-C.

    Several jobs take turns on the devices, which never wait for each other. A single job has its batches
    split over all of them.
    """
    devices = jax.local_devices()[: len(jobs)]
    if len(devices) == 1:
        return _one_by_one(jobs, Place(count_shards(batch)))
    place = Turns(devices)
    with ThreadPoolExecutor(max_workers=len(jobs), thread_name_prefix="training") as workers:
        futures = [workers.submit(job, place) for job in jobs]
        with suppress(KeyboardInterrupt):  # heard by the main thread alone
            wait(futures, return_when=FIRST_EXCEPTION)
        if not all(future.done() for future in futures):
            place.stop()
    return [future.result() for future in futures]


def _one_by_one(jobs: Sequence[Callable[[Place], Result]], place: Place) -> list[Result]:
    results = []
    for job in jobs:
        if not place.stopped:
            results.append(job(place))
    return results


def split_batch(batch: Any, shards: int) -> Any:
    """Within a compiled function: every device computes its share of what follows from this batch."""
    return batch if shards == 1 else jax.lax.with_sharding_constraint(batch, over_devices(shards, SHARED))


def over_devices(shards: int, spec: PartitionSpec = WHOLE) -> Sharding | None:
    """On so many devices, unless told otherwise the same on each; one needs no arrangement."""
    return NamedSharding(_mesh(shards), spec) if shards > 1 else None


def each_device() -> list[Sharding]:
    """Every device for itself, for work that is handed out in turn."""
    return [SingleDeviceSharding(device) for device in jax.local_devices()]


def placed(tree: Any, where: Sharding | None) -> Any:
    """Every array there; None leaves them where they are."""
    return tree if where is None else _put(tree, lambda leaf: leaf, where)


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


def _put(tree: Any, change: Callable[[Any], Any], where: Sharding | None = None) -> Any:
    """The tree with every array changed and put there, all in one call: each takes its time."""
    leaves, structure = jax.tree.flatten(tree)
    arrays = [index for index, leaf in enumerate(leaves) if isinstance(leaf, ARRAYS)]
    changed = jax.device_put([change(leaves[index]) for index in arrays], where)
    for index, array in zip(arrays, changed, strict=True):
        leaves[index] = array
    return jax.tree.unflatten(structure, leaves)


def _mesh(shards: int) -> Mesh:
    return Mesh(np.array(jax.local_devices()[:shards]), (AXIS,))


# What critics do on several devices.


def split_along(axis: int) -> PartitionSpec:
    """Arrays of which every device has a part along this axis."""
    return PartitionSpec(*[None] * axis, AXIS)


# Into how many parts the program being traced is split; 1 outside of `split`.
_parts: ContextVar[int] = ContextVar("parts", default=1)


def split(
    function: Callable[..., Any],
    parts: int,
    *,
    in_specs: Any = WHOLE,
    out_specs: Any = WHOLE,
) -> Callable[..., Any]:
    """The function run on several devices at once; unless told otherwise all get and give the same."""
    if parts == 1:
        return function

    def local(*arguments: Any) -> Any:
        token = _parts.set(parts)
        try:
            return function(*arguments)
        finally:
            _parts.reset(token)

    return jax.shard_map(local, mesh=_mesh(parts), in_specs=in_specs, out_specs=out_specs, check_vma=False)


def passed_on(tree: Any) -> Any:
    """What the device before this one has; the first gets what the last has."""
    parts = _parts.get()
    to_next = [(device, (device + 1) % parts) for device in range(parts)]
    # As one vector: devices meet once for every array they pass, and each time wait for the slowest.
    real, whole = eqx.partition(tree, eqx.is_inexact_array)
    flat, restore = ravel_pytree(real)
    real, whole = restore(jax.lax.ppermute(flat, AXIS, to_next)), jax.lax.ppermute(whole, AXIS, to_next)
    return eqx.combine(real, whole)
