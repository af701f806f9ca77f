"""Functions of an observation and an action, one for every policy, by a stack of networks."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from vlbm.estimators.critics.bellman import Logged
from vlbm.estimators.critics.networks import Critics, Seen

ONE = float(np.log(np.expm1(1.0)))  # where softplus is 1


class Reading(eqx.Module):
    """What the outputs of networks stand for: `offset` + `unit` * output, or a softplus that begins at 1."""

    offset: Float[Array, ""]
    unit: Float[Array, ""]
    positive: bool = eqx.field(static=True)
    policies: int = eqx.field(static=True)
    discrete: bool = eqx.field(static=True)

    def logged(
        self, networks: Critics, logged: Logged, step: Int[Array, " batch"]
    ) -> Float[Array, "policies batch"]:
        """Of logged actions."""
        return self.read(self.output(networks, logged, step))

    def output(
        self, networks: Critics, logged: Logged, step: Int[Array, " batch"]
    ) -> Float[Array, "policies batch"]:
        """What the networks say of logged actions, before it is read."""
        seen, action = seen_at(logged, logged.before[step]), logged.action[step]
        if not self.discrete:
            return networks(seen, action)[0, :, 0]
        return jnp.take_along_axis(networks(seen, None)[0], action[None, None], axis=1)[:, 0]

    def chosen(
        self,
        networks: Critics,
        logged: Logged,
        row: Int[Array, " batch"],
        choice: Float[Array, "batch policies*act"],
    ) -> Float[Array, "policies batch"]:
        """Of what every policy does at some observations."""
        seen, chosen = seen_at(logged, row), choice.reshape(len(row), self.policies, -1)
        if not self.discrete:
            return self.read(networks(seen, chosen)[0, :, 0])
        return jnp.einsum("pab,bpa->pb", self.read(networks(seen, None)[0]), chosen)

    def slope(self, output: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
        """How fast what is read grows with the output."""
        return jax.nn.sigmoid(output + ONE) if self.positive else jnp.broadcast_to(self.unit, output.shape)

    def read(self, output: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
        return jax.nn.softplus(output + ONE) if self.positive else self.offset + self.unit * output


def seen_at(logged: Logged, row: Int[Array, " batch"]) -> Seen:
    """Observations as one stack of networks takes them."""
    plain = logged.observation[row]
    return Seen(plain, plain[None])
