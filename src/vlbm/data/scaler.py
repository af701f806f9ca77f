"""Scaler: raw numbers to standardised ones and back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from vlbm.parallel import to_device

BLOCK_ROWS = 65_536  # rows per block, to bound the memory of double-precision temporaries
# Columns with a smaller relative deviation count as constant: scaling would amplify rounding errors.
CONSTANT = 1e-6


class Moments(NamedTuple):
    """Row count, mean, sum of squared deviations and range of columns, in double precision."""

    rows: int
    mean: Float[np.ndarray, " columns"]
    squares: Float[np.ndarray, " columns"]
    low: Float[np.ndarray, " columns"]
    high: Float[np.ndarray, " columns"]

    @classmethod
    def of(cls, block: Float[np.ndarray, "rows columns"]) -> Self:
        mean = block.mean(axis=0, dtype=np.float64)
        squares = np.square(block - mean).sum(axis=0)
        return cls(len(block), mean, squares, block.min(axis=0), block.max(axis=0))

    def merge(self, other: Self) -> Moments:
        """Moments of both blocks together, by Chan's update, which avoids cancellation."""
        rows = self.rows + other.rows
        difference = other.mean - self.mean
        return Moments(
            rows,
            self.mean + difference * (other.rows / rows),
            self.squares + other.squares + np.square(difference) * (self.rows * other.rows / rows),
            np.minimum(self.low, other.low),
            np.maximum(self.high, other.high),
        )


class Scaler(eqx.Module):
    """Mean and standard deviation of each column, and its observed range in standardised units."""

    mean: Float[Array, " columns"]
    scale: Float[Array, " columns"]
    low: Float[Array, " columns"]
    high: Float[Array, " columns"]

    @classmethod
    def fit(cls, values: Float[np.ndarray, "rows columns"]) -> Self:
        return cls.fit_blocks(
            values[begin : begin + BLOCK_ROWS] for begin in range(0, len(values), BLOCK_ROWS)
        )

    @classmethod
    def fit_blocks(cls, blocks: Iterable[Float[np.ndarray, "rows columns"]]) -> Self:
        """As `fit`, from blocks of rows."""
        seen: Moments | None = None
        for block in blocks:
            seen = Moments.of(block) if seen is None else seen.merge(Moments.of(block))
        if seen is None:
            raise ValueError("no values to fit a scaler to")
        deviation = np.sqrt(seen.squares / seen.rows)
        scale = np.where(deviation > CONSTANT * np.maximum(1.0, np.abs(seen.mean)), deviation, 1.0)
        low, high = (seen.low - seen.mean) / scale, (seen.high - seen.mean) / scale
        return cls(*(to_device(part) for part in (seen.mean, scale, low, high)))

    @classmethod
    def identity(cls, columns: int) -> Self:
        return cls(*(to_device(np.full(columns, value)) for value in (0.0, 1.0, -np.inf, np.inf)))

    def apply(self, raw: Float[Array, "*batch columns"]) -> Float[Array, "*batch columns"]:
        mean, scale = self._constants()
        return (raw - mean) / scale

    def invert(self, standardised: Float[Array, "*batch columns"]) -> Float[Array, "*batch columns"]:
        mean, scale = self._constants()
        return standardised * scale + mean

    def clip(
        self, standardised: Float[Array, "*batch columns"], margin: float
    ) -> Float[Array, "*batch columns"]:
        """Clip to the observed range, widened by `margin` times its width on both sides."""
        width = margin * (self.high - self.low)
        return jnp.clip(standardised, self.low - width, self.high + width)

    def _constants(self) -> tuple[Array, Array]:
        # Not trained.
        return jax.lax.stop_gradient(self.mean), jax.lax.stop_gradient(self.scale)
