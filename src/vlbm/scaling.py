"""Scaler: raw numbers to standardised ones and back."""

from __future__ import annotations

from typing import Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from vlbm.devices import on_device

# Below this spread a column is taken for a constant: dividing by it would blow rounding up to signal.
CONSTANT = 1e-6


class Scaler(eqx.Module):
    """Mean and deviation of each column, with the range that was seen, in standardised units."""

    mean: Float[Array, " columns"]
    scale: Float[Array, " columns"]
    low: Float[Array, " columns"]
    high: Float[Array, " columns"]

    @classmethod
    def fit(cls, values: Float[np.ndarray, "rows columns"]) -> Self:
        mean = values.mean(axis=0, dtype=np.float64)
        deviation = values.std(axis=0, dtype=np.float64)
        scale = np.where(deviation > CONSTANT * np.maximum(1.0, np.abs(mean)), deviation, 1.0)
        low, high = (values.min(axis=0) - mean) / scale, (values.max(axis=0) - mean) / scale
        return cls(*(on_device(part) for part in (mean, scale, low, high)))

    @classmethod
    def identity(cls, columns: int) -> Self:
        return cls(*(on_device(np.full(columns, value)) for value in (0.0, 1.0, -np.inf, np.inf)))

    def apply(self, raw: Float[Array, "*batch columns"]) -> Float[Array, "*batch columns"]:
        mean, scale = self._fixed()
        return (raw - mean) / scale

    def invert(self, standardised: Float[Array, "*batch columns"]) -> Float[Array, "*batch columns"]:
        mean, scale = self._fixed()
        return standardised * scale + mean

    def clip(
        self, standardised: Float[Array, "*batch columns"], margin: float
    ) -> Float[Array, "*batch columns"]:
        """Keep within the range that was seen, widened by `margin` times its width on both sides."""
        width = margin * (self.high - self.low)
        return jnp.clip(standardised, self.low - width, self.high + width)

    def _fixed(self) -> tuple[Array, Array]:
        # The data decide these, not the optimiser.
        return jax.lax.stop_gradient(self.mean), jax.lax.stop_gradient(self.scale)
