"""Normal and Bernoulli, and how branches are mixed into one of each."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

LOG_TWO_PI = 1.8378770664093453
# A mixed probability is kept this far from 0 and 1, where its logarithm would not be finite.
PROBABILITY_FLOOR = 1e-6


class Normal(eqx.Module):
    """Independent normal distributions, one per element."""

    mean: Float[Array, "*shape"]
    scale: Float[Array, "*shape"]

    def sample(self, noise: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """The reparameterised sample: `noise` is standard normal, or zero for the mean."""
        return self.mean + self.scale * noise

    def log_prob(self, value: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        deviation = (value - self.mean) / self.scale
        return -0.5 * (deviation**2 + LOG_TWO_PI) - jnp.log(self.scale)

    def kl(self, other: Normal) -> Float[Array, "*shape"]:
        """KL(self || other), element by element."""
        ratio = self.scale / other.scale
        shift = (self.mean - other.mean) / other.scale
        return 0.5 * (ratio**2 + shift**2 - 1.0) - jnp.log(ratio)

    def kl_from_standard(self) -> Float[Array, "*shape"]:
        """KL(self || N(0, 1)), element by element."""
        return 0.5 * (self.scale**2 + self.mean**2 - 1.0) - jnp.log(self.scale)

    def mix(self, weights: Float[Array, " branches"]) -> Normal:
        """The branches' consensus over the leading axis: N(sum w mu, sum w^2 sigma^2).

        This is the distribution of the weighted average of the branches' draws, not a mixture
        density: it has one mode.
        """
        return Normal(
            jnp.tensordot(weights, self.mean, axes=1),
            jnp.sqrt(jnp.tensordot(weights**2, self.scale**2, axes=1)),
        )


class Bernoulli(eqx.Module):
    """Independent yes-or-no draws, kept as logits."""

    logit: Float[Array, "*shape"]

    @property
    def probability(self) -> Float[Array, "*shape"]:
        return jax.nn.sigmoid(self.logit)

    def log_prob(self, value: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        return value * jax.nn.log_sigmoid(self.logit) + (1.0 - value) * jax.nn.log_sigmoid(-self.logit)

    def mix(self, weights: Float[Array, " branches"]) -> Bernoulli:
        """Bernoulli(sum w p) over the leading axis."""
        probability = jnp.tensordot(weights, self.probability, axes=1)
        probability = jnp.clip(probability, PROBABILITY_FLOOR, 1.0 - PROBABILITY_FLOOR)
        return Bernoulli(jnp.log(probability) - jnp.log1p(-probability))
