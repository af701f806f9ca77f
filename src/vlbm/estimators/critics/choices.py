"""What policies would do at logged observations: asked once, so that no training loop has to."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from vlbm.compilation import enable_compilation_cache
from vlbm.data.scaler import Scaler
from vlbm.parallel import each_device, put_on
from vlbm.policies.base import Policy, TracedPolicy, has_log_prob
from vlbm.policies.checks import check_actions
from vlbm.policies.stacked import Actions, StackedPolicies

CHUNK = 1024  # observations per call, whoever is asked: what wide networks keep of them should fit in caches
BUDGET = 1 << 30  # bytes; a table larger than this is never made, and policies are asked on the way


@dataclass(frozen=True, eq=False)
class Choices:
    """The action vectors of every policy at any logged observation, or its probabilities of every id.

    Probabilities are exact where a policy has them; where it has not, a drawn id stands for them, as a
    drawn vector does where actions are vectors. All policies draw with the same luck.
    """

    policies: Mapping[str, Policy]
    observation: Float[np.ndarray, "rows obs"]
    action_size: int
    discrete: bool
    actions: Actions
    draws: int  # how many actions are drawn at every observation, where any are
    key: PRNGKeyArray
    scaler: Scaler | None = None  # of action vectors: what stands in the table is standardised
    empty: int = 0  # seats after the last policy, on which it is seated again: devices get as many each

    @cached_property
    def drawn(self) -> bool:
        """Whether there is any luck in what the policies do."""
        return self.actions == "sample" and not all(map(self._exact, self.policies.values()))

    @cached_property
    def width(self) -> int:
        """Numbers for one observation."""
        return (len(self.policies) + self.empty) * self.action_size

    @cached_property
    def copies(self) -> int:
        """Draws that a table holds for every observation: as many as asked for, or as fit; 0 if none do."""
        fitting = BUDGET // (4 * self.width * len(self.observation))
        return min(self.draws if self.drawn else 1, fitting)

    def table(self) -> Float[np.ndarray, "copies*rows policies*act"]:
        """What the policies do at every observation, draw after draw."""
        # Filled in place: parts that are put together afterwards would be held twice.
        rows = len(self.observation)
        table = np.empty((self.copies * rows, self.width), np.float32)
        for draw in range(self.copies):
            for first, part in self._parts(np.arange(rows), draw):
                table[draw * rows + first : draw * rows + first + len(part)] = part
        return table

    def at(self, rows: Int[np.ndarray, " rows"], *, draw: int) -> Float[np.ndarray, "rows policies*act"]:
        """What the policies do at some observations, in one draw."""
        return np.concatenate([part for _, part in self._parts(rows, draw)])

    def _parts(self, rows: np.ndarray, draw: int) -> Iterator[tuple[int, np.ndarray]]:
        enable_compilation_cache()
        size = min(CHUNK, len(rows))
        under_way: deque[tuple[int, np.ndarray, PRNGKeyArray, list[Array]]] = deque()
        for number, first in enumerate(range(0, len(rows), size)):
            # The last part is filled up with its own last row: one shape, one program.
            seen = self.observation[rows[np.minimum(np.arange(first, first + size), len(rows) - 1)]]
            key = jax.random.fold_in(jax.random.fold_in(self.key, draw), number)
            # Devices take turns: while one is waited for, the others work.
            begun = self._begun(seen, key, number % len(self._crowds))
            under_way.append((first, seen, key, begun))
            if len(under_way) > len(self._crowds):
                yield self._finished(*under_way.popleft(), len(rows))
        while under_way:
            yield self._finished(*under_way.popleft(), len(rows))

    def _begun(
        self, observation: Float[np.ndarray, "batch obs"], key: PRNGKeyArray, device: int
    ) -> list[Float[Array, "policies batch act"]]:
        """What policies written in JAX do, crowd by crowd; nobody waits for it."""
        where, crowds = self._crowds[device]
        seen, key = put_on((observation.astype(np.float32), key), where)
        return [
            _probabilities(crowd, seen, self.action_size)
            if exact
            else _actions(crowd, seen, self.actions, key)
            for (exact, _), crowd in zip(self._members, crowds, strict=True)
        ]

    def _finished(
        self,
        first: int,
        observation: Float[np.ndarray, "batch obs"],
        key: PRNGKeyArray,
        begun: list[Array],
        rows: int,
    ) -> tuple[int, Float[np.ndarray, "batch policies*act"]]:
        count = len(self.policies)
        answer = np.empty((len(observation), count + self.empty, self.action_size), np.float32)
        names = list(self.policies)
        for (exact, indices), actions in zip(self._members, begun, strict=True):
            for index, found in zip(indices, np.asarray(actions), strict=True):
                answer[:, index] = self._checked(names[index], found, exact)
        for index, (name, policy) in enumerate(self.policies.items()):
            if not isinstance(policy, TracedPolicy):
                raw = self._foreign(policy, observation, key)
                answer[:, index] = self._checked(name, raw, self._exact(policy))
        answer[:, count:] = answer[:, count - 1 : count]
        return first, answer[: rows - first].reshape(-1, self.width)

    def _foreign(self, policy: Policy, observation: np.ndarray, key: PRNGKeyArray) -> np.ndarray:
        """What a policy does that is not written in JAX."""
        if self._exact(policy):
            ids = (np.full(len(observation), action) for action in range(self.action_size))
            log = [policy.log_prob(observation, chosen) for chosen in ids]  # type: ignore[attr-defined]
            return np.exp(np.stack([np.asarray(part, np.float64) for part in log], axis=-1))
        return policy.mean(observation) if self.actions == "mean" else policy.sample(observation, key=key)

    def _checked(self, name: str, raw: np.ndarray, exact: bool) -> Float[np.ndarray, "batch act"]:
        checked = check_actions(
            name,
            raw,
            batch=len(raw),
            action_size=self.action_size,
            discrete=self.discrete and not exact,
        )
        if checked.ndim == 1:
            return np.eye(self.action_size, dtype=np.float32)[checked]
        if self.scaler is None:
            return checked
        return (checked - np.asarray(self.scaler.mean)) / np.asarray(self.scaler.scale)

    def _exact(self, policy: Policy) -> bool:
        return self.discrete and self.actions == "sample" and has_log_prob(policy)

    @cached_property
    def _members(self) -> list[tuple[bool, list[int]]]:
        """Policies written in JAX by their numbers, those with exact probabilities apart."""
        traced = [
            (self._exact(policy), index)
            for index, policy in enumerate(self.policies.values())
            if isinstance(policy, TracedPolicy)
        ]
        groups = [(exact, [index for kind, index in traced if kind is exact]) for exact in (True, False)]
        return [(exact, indices) for exact, indices in groups if indices]

    @cached_property
    def _crowds(self) -> list[tuple[Any, list[StackedPolicies]]]:
        """The same as crowds, on every device, and which one that is."""
        policies: list[Any] = list(self.policies.values())
        groups = [[policies[index] for index in indices] for _, indices in self._members]
        crowds = [StackedPolicies.of(group) for group in groups]
        return [(where, put_on(crowds, where)) for where in each_device()]


@eqx.filter_jit
def _actions(crowd: StackedPolicies, observation: Array, actions: Actions, key: PRNGKeyArray) -> Array:
    count = sum(map(len, crowd.members))
    seen = jnp.broadcast_to(observation, (count, *observation.shape))
    return crowd.act(seen, actions=actions, key=key)


@eqx.filter_jit
def _probabilities(
    crowd: StackedPolicies, observation: Array, actions: int
) -> Float[Array, "policies batch act"]:
    def of(policy: TracedPolicy) -> Array:
        ids = jnp.broadcast_to(jnp.arange(actions)[:, None], (actions, len(observation)))
        return jnp.exp(jax.vmap(lambda action: policy.log_prob(observation, action))(ids)).T

    found = jnp.concatenate([jax.vmap(of)(group) for group in crowd.groups])
    return found[np.argsort(np.concatenate([np.array(indices) for indices in crowd.members]))]
