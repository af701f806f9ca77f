"""Layout: how long episodes are, which is all that drawing windows depends on."""

from __future__ import annotations

from typing import NamedTuple, Protocol, Self, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PRNGKeyArray

from vlbm.episodes import Episodes
from vlbm.selection import Selection

Drawn = TypeVar("Drawn", covariant=True)


class Source(Protocol[Drawn]):
    """What can be drawn from: a layout gives places, data on the device give windows."""

    def draw(self, *, steps: int, batch: int, at_start: float, key: PRNGKeyArray) -> Drawn: ...

    def draw_episodes(self, *, steps: int, batch: int, key: PRNGKeyArray) -> Drawn: ...


class Places(NamedTuple):
    """Where windows begin."""

    episode: Int[Array, " batch"]
    start: Int[Array, " batch"]


class Layout(eqx.Module):
    """Lengths of episodes on the device, filled up to a round size."""

    length: Int[Array, " places"]  # 0 where there is no episode
    count: Int[Array, ""]  # of episodes

    @classmethod
    def of(cls, episodes: Episodes | Selection) -> Self:
        length = np.zeros(round_size(episodes.count), np.int32)
        length[: episodes.count] = episodes.length
        return cls(jax.device_put(length), jax.device_put(np.int32(episodes.count)))

    def draw(self, *, steps: int, batch: int, at_start: float, key: PRNGKeyArray) -> Places:
        """Random windows: a share `at_start` begins with an episode, the rest anywhere.

        A window that would run past its episode's end is moved back to end with it, so that the
        last step, where terminations are, is seen as often as any other. An episode shorter than a
        window is drawn as if it were as long as one: its few steps then count as much as others do.
        """
        # One draw of bits serves both choices: every separate draw adds seconds of compilation.
        bits = jax.lax.optimization_barrier(jax.random.bits(key, (2, batch), jnp.uint32))
        place_bits, start_bits = bits
        room = jnp.where(self.length > 0, jnp.maximum(self.length, steps), 0)
        upto = jnp.cumsum(room)
        place = (place_bits % upto[-1].astype(jnp.uint32)).astype(jnp.int32)
        episode = jnp.searchsorted(upto, place, side="right")
        within = jnp.minimum(place - (upto - room)[episode], self.length[episode] - steps)
        begins = start_bits < np.uint32(min(at_start, 1.0) * (2**32 - 1))
        return Places(episode, jnp.where(begins, 0, jnp.maximum(within, 0)))

    def draw_episodes(self, *, steps: int, batch: int, key: PRNGKeyArray) -> Places:
        """Whole episodes, each equally likely."""
        bits = jax.random.bits(key, (batch,), jnp.uint32)
        episode = (bits % self.count.astype(jnp.uint32)).astype(jnp.int32)
        return Places(episode, jnp.zeros_like(episode))


def round_size(count: int) -> int:
    """The next number with at most four leading binary digits that are not zero: at most an eighth more."""
    step = 1 << max(count.bit_length() - 4, 0)
    return -(-count // step) * step
