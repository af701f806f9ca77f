"""What the branching model's objective is made of, and how its parts are weighed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Scalar

from vlbm.backward import total

AlignmentKind = Literal["pairwise", "mse", "none"]
MixtureKind = Literal["branches", "encoder", "none"]


@dataclass(frozen=True)
class Weighting:
    """How much each term counts."""

    alignment: AlignmentKind = "pairwise"
    alignment_weight: float = 1.0  # C1
    bound_weight: float = 1.0  # C2
    divergence_weight: float = 1.0  # of KL(q(z_t) || p(z_t)) within the bound; 1 is the bound itself
    initial_divergence_weight: float = 1.0  # of KL(q(z_0) || N(0, I)) within the bound
    # The latents that the mixture's likelihood is taken at: the branches' own one-step predictions,
    # as the paper writes it, or the encoder's. "none" trains the branches by their bounds alone.
    mixture: MixtureKind = "branches"


class Terms(NamedTuple):
    """Averages over the valid steps of a batch; sums over branches where there are several."""

    mixture: Scalar  # log-likelihood of states and rewards under the mixture
    reconstruction: Scalar
    initial_divergence: Scalar
    divergence: Scalar
    alignment: Scalar
    ending: Scalar  # log-likelihood of endings, single branches and mixture

    def total(self, weighting: Weighting) -> Scalar:
        """To be maximised."""
        bound = (
            self.reconstruction
            - weighting.initial_divergence_weight * self.initial_divergence
            - weighting.divergence_weight * self.divergence
        )
        return (
            self.mixture
            - weighting.alignment_weight * self.alignment
            + weighting.bound_weight * bound
            + self.ending
        )


def alignment(difference: Float[Array, "*batch units"], kind: AlignmentKind) -> Float[Array, "*batch"]:
    """How far two recurrent states differ, given their difference delta.

    Pairwise: the mean over pairs j < k of (delta_j - delta_k)^2, which a shift of all units leaves
    alone. It takes O(M), not O(M^2), because sum_{j<k} (d_j - d_k)^2 = M sum d^2 - (sum d)^2; the
    same number is the variance of delta times 2 M / (M - 1), a form that does not cancel.
    """
    if kind == "none":
        return jnp.zeros(difference.shape[:-1])
    if kind == "mse":
        return (difference**2).mean(-1)
    return _spread(difference)


@jax.custom_vjp
def _spread(difference: Float[Array, "*batch units"]) -> Float[Array, "*batch"]:
    return _spread_forward(difference)[0]


def _spread_forward(difference: Array) -> tuple[Array, tuple[Array, Array]]:
    units = difference.shape[-1]
    mean = total(difference)[..., None] / units
    return total((difference - mean) ** 2) * (2.0 / (units - 1)), (difference, mean)


def _spread_backward(saved: tuple[Array, Array], cotangent: Array) -> tuple[Array]:
    difference, mean = saved
    # Nothing flows through the mean. A quotient, not a product: the compiler computes it once for all uses.
    # Of one divisor for many numbers it would make a product, so each has its own.
    divisor = jnp.where(cotangent == 0, jnp.inf, 0.25 * (difference.shape[-1] - 1) / cotangent)
    return ((difference - mean) / (divisor[..., None] + 0.0 * difference),)


_spread.defvjp(_spread_forward, _spread_backward)
