"""Work on several devices: models train in parallel, batches and roll-outs are sharded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from threading import Event
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding
from jaxtyping import Array

Result = TypeVar("Result")

DEVICE_AXIS = "devices"
ARRAYS = (jax.Array, np.ndarray)  # trained models have the former, loaded ones the latter
REPLICATED, SHARDED = PartitionSpec(), PartitionSpec(DEVICE_AXIS)


def count_shards(batch: int) -> int:
    """The number of devices that divides a batch evenly."""
    most = min(len(jax.local_devices()), batch)
    return max(shards for shards in range(1, most + 1) if batch % shards == 0)


def map_shards(function: Callable[[Any, Any], Any], shards: int) -> Callable[[Any, Any], Any]:
    """f(replicated, batch) with the batch sharded along its leading axis, without communication."""
    if shards == 1:
        return function
    specs = (REPLICATED, SHARDED)
    return jax.shard_map(function, mesh=_mesh(shards), in_specs=specs, out_specs=SHARDED, check_vma=False)


class Devices:
    """The devices of one training: a single one, or several that each batch is sharded over."""

    def __init__(self, shards: int = 1):
        self.shards = shards
        self._stopped = Event()

    @contextmanager
    def acquire(self) -> Iterator[Sharding | None]:
        """The sharding for the next chunk of work; None leaves arrays where they are."""
        self._raise_if_stopped()
        yield make_sharding(self.shards)

    def stop(self) -> None:
        """Make every later `acquire` raise KeyboardInterrupt."""
        self._stopped.set()

    @property
    def stopped(self) -> bool:
        return self._stopped.is_set()

    def _raise_if_stopped(self) -> None:
        if self.stopped:
            raise KeyboardInterrupt  # only one thread receives Ctrl-C


class DevicePool(Devices):
    """A pool of devices, acquired for one chunk of work at a time: three trainings can share two devices."""

    def __init__(self, devices: Sequence[jax.Device]):
        super().__init__()
        self._free: SimpleQueue[jax.Device] = SimpleQueue()
        for device in devices:
            self._free.put(device)

    @contextmanager
    def acquire(self) -> Iterator[Sharding | None]:
        device = self._free.get()
        try:
            self._raise_if_stopped()
            yield SingleDeviceSharding(device)
        finally:
            self._free.put(device)


def run_parallel(jobs: Sequence[Callable[[Devices], Result]], *, batch: int) -> list[Result]:
    """The results of all jobs, without those that had not started before Ctrl-C.

    Several jobs share a pool of devices, without synchronisation. A single job has its batches sharded over
    all devices.
    """
    devices = jax.local_devices()[: len(jobs)]
    if len(devices) == 1:
        return _run_sequentially(jobs, Devices(count_shards(batch)))
    devices = DevicePool(devices)
    with ThreadPoolExecutor(max_workers=len(jobs), thread_name_prefix="training") as workers:
        futures = [workers.submit(job, devices) for job in jobs]
        with suppress(KeyboardInterrupt):  # raised in the main thread only
            wait(futures, return_when=FIRST_EXCEPTION)
        if not all(future.done() for future in futures):
            devices.stop()
    return [future.result() for future in futures]


def _run_sequentially(jobs: Sequence[Callable[[Devices], Result]], devices: Devices) -> list[Result]:
    results = []
    for job in jobs:
        if not devices.stopped:
            results.append(job(devices))
    return results


def split_batch(batch: Any, shards: int) -> Any:
    """Within a compiled function: shard a batch over devices."""
    return batch if shards == 1 else jax.lax.with_sharding_constraint(batch, make_sharding(shards, SHARDED))


def make_sharding(shards: int, spec: PartitionSpec = REPLICATED) -> Sharding | None:
    """A sharding over devices, by default replicated; None for a single device."""
    return NamedSharding(_mesh(shards), spec) if shards > 1 else None


def put_on(tree: Any, sharding: Sharding | None) -> Any:
    """All arrays with this sharding; None leaves them where they are."""
    return tree if sharding is None else _device_put(tree, lambda leaf: leaf, sharding)


def unreplicate(tree: Any) -> Any:
    """The copy on the first device of replicated arrays, so that later work runs on one device."""

    def first(leaf: Any) -> Any:
        several = isinstance(leaf, jax.Array) and len(leaf.sharding.device_set) > 1
        return leaf.addressable_data(0) if several else leaf

    return jax.tree.map(first, tree)


def uncommit(tree: Any) -> Any:
    """Arrays that are not committed to a device, so that they can be combined with any other."""
    return _device_put(tree, np.asarray)


def to_device(values: np.ndarray) -> Array:
    """A float32 device array; unlike jnp.asarray this compiles nothing."""
    return jax.device_put(np.asarray(values, np.float32))


def _device_put(tree: Any, change: Callable[[Any], Any], sharding: Sharding | None = None) -> Any:
    """Change all arrays and put them on a device in one call, since each call has a fixed cost."""
    leaves, structure = jax.tree.flatten(tree)
    arrays = [index for index, leaf in enumerate(leaves) if isinstance(leaf, ARRAYS)]
    changed = jax.device_put([change(leaves[index]) for index in arrays], sharding)
    for index, array in zip(arrays, changed, strict=True):
        leaves[index] = array
    return jax.tree.unflatten(structure, leaves)


def _mesh(shards: int) -> Mesh:
    return Mesh(np.array(jax.local_devices()[:shards]), (DEVICE_AXIS,))
