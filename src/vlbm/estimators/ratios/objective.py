"""The regularised Lagrangian whose saddle point is the density ratio (Yang et al., 2020)."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Float


@dataclass(frozen=True)
class Lagrangian:
    """Small in values and the multiplier, large in ratios: mean of `beginnings` plus mean of `steps`.

    Without regularisers, values say that ratios must balance: what flows into an observation and action,
    from a beginning or from the step before, must flow out of it. The ratio is that of discounted visits
    to logged ones, times `share`, which only sets the scale: ratios that are 1 everywhere fulfil

        mean of ratio * (1 - continuation) = share,

    and so do the right ones, for that is the balance of everything together: what begins must end, by an
    ending or by discounting. A continuation is the discount, or 0 where the system or a horizon ended the
    episode. For endless tasks the equation says that ratios average 1, and `share` is 1 - discount. Where
    episodes end, it says what an absorbing state would: its mass is eliminated, not forgotten.
    """

    primal_regulariser: float  # of values
    dual_regulariser: float  # of ratios
    reward: bool  # whether rewards enter; the ratio at the saddle point is the same without
    normalised: bool  # whether that balance has a multiplier of its own

    def beginnings(
        self,
        value: Float[Array, "*policies beginnings"],
        *,
        multiplier: Float[Array, "*policies"],
        share: Float[Array, ""],
    ) -> Float[Array, "*policies beginnings"]:
        return share * value + (multiplier[..., None] if self.normalised else 0.0)

    def steps(
        self,
        value: Float[Array, "*policies steps"],
        value_after: Float[Array, "*policies steps"],
        ratio: Float[Array, "*policies steps"],
        *,
        multiplier: Float[Array, "*policies"],
        reward: Float[Array, " steps"],
        continuation: Float[Array, " steps"],
        share: Float[Array, ""],
    ) -> Float[Array, "*policies steps"]:
        residual = self.residual(
            value, value_after, multiplier=multiplier, reward=reward, continuation=continuation, share=share
        )
        penalty = self.primal_regulariser * jnp.square(value) - self.dual_regulariser * jnp.square(ratio)
        return ratio * residual + penalty / 2

    def residual(
        self,
        value: Float[Array, "*policies steps"],
        value_after: Float[Array, "*policies steps"],
        *,
        multiplier: Float[Array, "*policies"],
        reward: Float[Array, " steps"],
        continuation: Float[Array, " steps"],
        share: Float[Array, ""],
    ) -> Float[Array, "*policies steps"]:
        """What a ratio is multiplied by."""
        residual = continuation * value_after - value
        if self.reward:
            residual = residual + reward
        if self.normalised:
            residual = residual - multiplier[..., None] * (1 - continuation) / share
        return residual
