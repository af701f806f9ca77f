"""Leaps: what critics are linear in, solved for at once instead of being waited for."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from vlbm.estimators.critics.bellman import Logged, Shape
from vlbm.estimators.critics.networks import Critics

PROBE = 6_000_000  # numbers that a leap looks at for one network: regressors of as many steps as that makes
LARGEST_SYSTEM = 300  # unknowns of a leap where every discrete action has its own
RIDGE = 3e-3  # of the mean square of the regressors


def probe_size(critics: Critics) -> int:
    """How many steps a leap looks at; whoever else is evaluated, a policy's leaps look at as many."""
    unknowns = critics.regressor_count * critics.head.bias.shape[-1]
    return max(PROBE // min(unknowns, LARGEST_SYSTEM), 1000)


@eqx.filter_jit
def leap(
    critics: Critics,
    logged: Logged,
    probe: Int[Array, " probe"],
    choice: Float[Array, "probe policies*act"],
    shape: Shape,
) -> Float[Array, "copies policies regressors #outputs"]:
    """How last layers and quadratic parts move to where repeating the regression on them would end.

    Training on one's own predictions is slowest where values rise or fall together: with a discount of
    0.995 such an error shrinks by half a percent while the targets are renewed. For what is linear the
    end of it all is one system of linear equations (LSTD, as a correction of what is there).
    """
    taken = logged.action[probe]
    error = shape.per_copy(logged.targets(critics, probe, choice, shape))
    error = error - logged.action_values(critics, probe, shape)
    weight = shape.per_copy(logged.weight[logged.episode[probe]].T) / len(probe)
    discount = logged.discount * logged.goes_on[probe]
    row = logged.before[probe]
    seen, after = logged.seen(row, shape), logged.seen(row + 1, shape)
    chosen = choice.reshape(len(probe), shape.policies, -1)
    outputs = 1
    if shape.discrete and critics.regressor_count * chosen.shape[-1] <= LARGEST_SYSTEM:
        # Every action has a head of its own. Where that is too many, all heads are moved alike.
        outputs = chosen.shape[-1]

    def of_one(part: tuple[Critics, Array, Array]) -> Float[Array, "copies regressors outputs"]:
        critics, error, chosen = part
        critics = jax.tree.map(lambda leaf: leaf[:, None], critics)
        here = critics.regressors(seen, None if shape.discrete else taken)[:, 0]
        there = critics.regressors(after, None if shape.discrete else chosen[:, None])[:, 0]
        if outputs > 1:
            here = _by_action(here, jax.nn.one_hot(taken, outputs))
            there = _by_action(there, chosen)
        weighted = weight[..., None] * here
        square = jnp.einsum("cbi,cbj->cij", weighted, here - discount[:, None] * there)
        size = jnp.einsum("cbi,cbi->c", weighted, here) / here.shape[-1]
        ridge = RIDGE * size[:, None, None] * jnp.eye(here.shape[-1])
        right = jnp.einsum("cbi,cb->ci", weighted, error)
        by = jnp.linalg.solve(square + ridge, right[..., None])[..., 0]
        # A system that is nearly singular answers anything: no leap goes farther than values are spread.
        change = jnp.einsum("cbi,ci->cb", here, by)
        by = by / jnp.maximum(jnp.sqrt((change**2).mean(axis=-1, keepdims=True)), 1.0)
        by = jnp.where(jnp.isfinite(by).all(axis=-1, keepdims=True), by, 0.0)
        return by.reshape(len(by), -1, outputs)

    # One policy after the other: what one system looks at is large enough.
    parts = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), (critics, error, chosen))
    return jnp.swapaxes(jax.lax.map(of_one, parts), 0, 1)


def _by_action(features: Float[Array, "copies batch units"], share: Float[Array, "batch actions"]) -> Array:
    """Regressors of every action, as much as it has a share in what is done."""
    return (features[..., None] * share[:, None]).reshape(*features.shape[:2], -1)
