"""Where trainings run: on one device, each batch split over several, or side by side and by turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from threading import Event
from typing import TypeVar

import jax
from jax.sharding import Sharding, SingleDeviceSharding

from vlbm.devices import groups_for, over_devices, parts_for

Result = TypeVar("Result")


class Workplace:
    """One device, or as many as each batch has parts."""

    def __init__(self, parts: int = 1):
        self.parts = parts
        self._stopped = Event()

    @contextmanager
    def turn(self) -> Iterator[Sharding | None]:
        """Where the next stretch of work has its arrays; None leaves them where they are."""
        self._heed()
        yield over_devices(self.parts) if self.parts > 1 else None

    def stop(self) -> None:
        """Let nobody begin another stretch."""
        self._stopped.set()

    @property
    def stopped(self) -> bool:
        return self._stopped.is_set()

    def _heed(self) -> None:
        if self.stopped:
            raise KeyboardInterrupt  # meant for all who work here, heard by one


class Turns(Workplace):
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


def side_by_side(jobs: Sequence[Callable[[Workplace], Result]], *, batch: int) -> list[Result]:
    """What each piece of work gave, without those that were not begun before the place was stopped.

    With several devices and several pieces, pieces take turns on the devices. That loses less than splitting
    batches, because no device waits for another. Otherwise one comes after the other, and batches are split.
    """
    devices = jax.local_devices()[: len(jobs)]
    if len(devices) == 1:
        return _one_by_one(jobs, Workplace(parts_for(groups_for(batch))))
    place = Turns(devices)
    with ThreadPoolExecutor(max_workers=len(jobs), thread_name_prefix="training") as workers:
        futures = [workers.submit(job, place) for job in jobs]
        with suppress(KeyboardInterrupt):  # heard by the main thread alone
            wait(futures, return_when=FIRST_EXCEPTION)
        if not all(future.done() for future in futures):
            place.stop()
    return [future.result() for future in futures]


def _one_by_one(jobs: Sequence[Callable[[Workplace], Result]], place: Workplace) -> list[Result]:
    results = []
    for job in jobs:
        if not place.stopped:
            results.append(job(place))
    return results
