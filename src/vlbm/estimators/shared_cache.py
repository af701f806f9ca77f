"""SharedCache: what several methods would make in the same way is made once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

Made = TypeVar("Made")


class SharedCache:
    """Holds what was made lately, by everything that it was made from; `compare` gives all methods one."""

    def __init__(self, room: int):
        self._room = room
        self._made: OrderedDict[Hashable, Any] = OrderedDict()

    def recall(self, origin: Hashable, make: Callable[[], Made]) -> Made:
        """What was made from the same before, or else what is made now."""
        made: Made = self._made.pop(origin) if origin in self._made else make()
        self._made[origin] = made
        while len(self._made) > self._room:
            self._made.popitem(last=False)
        return made


no_cache = SharedCache(0)  # what a method does alone is not held any longer than it is needed
