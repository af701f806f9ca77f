"""SharedCache: what several methods would make in the same way is made once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import TypeVar

Made = TypeVar("Made")


class SharedCache:
    """Holds what was made lately, by everything that it was made from; `compare` gives all methods one."""

    def __init__(self, room: int):
        self._room = room
        self._made: OrderedDict[Hashable, object] = OrderedDict()

    def recall(self, origin: Hashable, make: Callable[[], Made]) -> Made:
        """What was made from the same before, or else what is made now."""
        if origin not in self._made:
            self._made[origin] = make()
        self._made.move_to_end(origin)
        while len(self._made) > max(self._room, 1):
            self._made.popitem(last=False)
        return self._made[origin]  # type: ignore[return-value]  # the origin says what is made from it


class NullCache(SharedCache):
    """Makes everything anew: what a method does alone is not held any longer than it is needed."""

    def recall(self, origin: Hashable, make: Callable[[], Made]) -> Made:
        return make()


no_cache = NullCache(0)
