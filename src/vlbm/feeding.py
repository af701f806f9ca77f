"""WindowFeed: windows gathered from data that are too large for the device, ahead of the steps to come."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PRNGKeyArray

from vlbm.drawing import Layout, Places
from vlbm.selection import Selection
from vlbm.windows import Window


class WindowFeed:
    """The windows that the device would have drawn and cut for the same key, several steps' at a time.

    The next ones are gathered while the steps run, so that reading from a disk is not waited for.
    """

    def __init__(self, log: Selection, draw: Callable[[Layout, PRNGKeyArray], Places], *, steps: int) -> None:
        """`draw` says where the windows of a step lie, given that step's key; each has so many `steps`."""
        self._log, self._steps = log, steps
        self._layout = Layout.of(log)
        self._draw = eqx.filter_jit(
            lambda layout, key, indices: jax.vmap(lambda index: draw(layout, jax.random.fold_in(key, index)))(
                indices
            )
        )
        self._reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="windows")
        self._ahead: tuple[int, Future[Window]] | None = None

    def stretch(self, key: PRNGKeyArray, *, begin: int, count: int) -> Window:
        """The windows of `count` steps from `begin`, stacked."""
        if self._ahead is not None and self._ahead[0] == begin:
            windows = self._ahead[1].result()
        else:
            windows = self._gather(key, begin, count)
        following = begin + count
        self._ahead = following, self._reader.submit(self._gather, key, following, count)
        return windows

    def _gather(self, key: PRNGKeyArray, begin: int, count: int) -> Window:
        indices: Int[Array, " count"] = begin + jnp.arange(count)
        episode, start = map(np.asarray, self._draw(self._layout, key, indices))
        return Window.of(self._log.cut(episode, start, steps=self._steps))
