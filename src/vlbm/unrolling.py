"""Stretches of imagined steps: of policies within the compiled loop, and of those called from outside."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, Shaped

from vlbm.devices import in_lots, lot_key, over_devices, parts_for, placed
from vlbm.models.base import World
from vlbm.policies.base import Policy, TracedPolicy
from vlbm.policies.checks import check_actions
from vlbm.policies.crowd import Actions, Crowd

CHUNK = 50  # steps per compiled call: progress, early stopping and Ctrl-C happen in between
LONG_CHUNK = 1000  # where there are so few episodes that calling takes longer than stepping
FEW = 64  # episodes of all policies together
# Imagined episodes, of all policies together, that are worth a device of their own.
SMALLEST_LOT = 64


class Trace(NamedTuple):
    """What a stretch of steps left behind, on the device or on the host; time is the leading axis."""

    action: Shaped[Any, "steps policies episodes *act"]
    observation: Float[Any, "steps policies episodes obs"]  # after the action
    reward: Float[Any, "steps policies episodes"]
    ended: Bool[Any, "steps policies episodes"]

    def among(self, policies: int, places: Int[np.ndarray, " some"]) -> Trace:
        """This as part of what all policies leave behind; zeros stand for the others."""
        whole = [np.zeros((len(part), policies, *part.shape[2:]), part.dtype) for part in self]
        for part, own in zip(whole, self, strict=True):
            part[:, places] = own
        return Trace(*whole)


class Chance(NamedTuple):
    """All that is random in a step, but for what policies draw themselves."""

    action: PRNGKeyArray
    world: Any
    ending: Float[Array, " episodes"]


class Run(ABC):
    """Policies on their way through a world, from the first observations on."""

    def __init__(
        self,
        world: World,
        policies: Mapping[str, Policy],
        *,
        start: Float[np.ndarray, "episodes obs"] | None,
        episodes: int,
        horizon: int,
        actions: Actions,
        key: PRNGKeyArray,
    ):
        self.policies, self.actions = policies, actions
        few = len(policies) * episodes <= FEW
        self.chunk = min(LONG_CHUNK if few else CHUNK, -(-horizon // CHUNK) * CHUNK)
        self.lots = self._lots(episodes)
        self.world, (begin_key, self.key) = placed((world, jax.random.split(key)), over_devices(self.lots))
        shares = (len(policies), episodes // self.lots)
        start_in_lots = None if start is None else _in_lots(start, self.lots)
        self.state, self.observation = _begin(self.world, start_in_lots, begin_key, shares, self.lots)
        self.first = _joined(self.observation)

    def _lots(self, episodes: int) -> int:
        """Into how many lots the episodes go, each for a device of its own."""
        return 1

    @abstractmethod
    def advance(self, begin: int, steps: int) -> Trace:
        """The next steps, of which `begin` is the first."""

    @abstractmethod
    def keep(self, places: Int[np.ndarray, " kept"]) -> None:
        """Go on with some of the policies alone; what they meet stays as it would have been."""


class TracedRun(Run):
    """Policies written in JAX, inside the compiled loop; every device imagines a lot of their episodes."""

    def _lots(self, episodes: int) -> int:
        return parts_for(episodes, smallest=-(-SMALLEST_LOT // len(self.policies)))

    def keep(self, places: Int[np.ndarray, " kept"]) -> None:
        self.policies = _some(self.policies, places)
        fixed = (self.world, placed(jnp.asarray(places), over_devices(self.lots)))
        self.state, self.observation = _kept(fixed, (self.state, self.observation), self.lots)
        self.__dict__.pop("_crowd", None)

    @cached_property
    def _crowd(self) -> Crowd:
        traced = [policy for policy in self.policies.values() if isinstance(policy, TracedPolicy)]
        return placed(Crowd.of(traced), over_devices(self.lots))

    def advance(self, begin: int, steps: int) -> Trace:
        # Always a whole chunk, so that there is one program; what is beyond the horizon is cut off.
        time = jnp.asarray(begin)
        fixed = (self.world, self._crowd, time, self.key)
        self.state, self.observation, trace = _compiled_stretch(
            fixed, (self.state, self.observation), steps=self.chunk, actions=self.actions, lots=self.lots
        )
        return Trace(*(_joined(part, axis=2)[:steps] for part in trace))


class HostRun(Run):
    """Policies outside JAX: one call per policy and step with all its episodes, then one world step."""

    def __init__(self, world: World, policies: Mapping[str, Policy], **options: Any):
        super().__init__(world, policies, **options)
        self.state, self.observation = jax.tree.map(lambda lot: lot[0], (self.state, self.observation))

    def advance(self, begin: int, steps: int) -> Trace:
        taken = []
        for time in range(begin, begin + steps):
            seen = np.asarray(self.observation)
            action_key, _, _ = _keys(self.key, jnp.asarray(time))
            action = np.stack(
                [
                    self._act(name, policy, part, action_key)
                    for (name, policy), part in zip(self.policies.items(), seen, strict=True)
                ]
            )
            self.state, outcome, ended = _compiled_step(
                self.world, self.state, jnp.asarray(action), jnp.asarray(time), self.key
            )
            self.observation = outcome.observation
            taken.append(
                Trace(action, *(np.asarray(part) for part in (self.observation, outcome.reward, ended)))
            )
        return Trace(*(np.stack(parts) for parts in zip(*taken, strict=True)))

    def keep(self, places: Int[np.ndarray, " kept"]) -> None:
        self.policies = _some(self.policies, places)
        self.state = self.world.kept(self.state, jnp.asarray(places))
        self.observation = self.observation[jnp.asarray(places)]

    def _act(self, name: str, policy: Policy, seen: np.ndarray, key: PRNGKeyArray) -> np.ndarray:
        return check_actions(
            name,
            policy.mean(seen) if self.actions == "mean" else policy.sample(seen, key=key),
            batch=len(seen),
            action_size=self.world.action.mean.shape[0],
            discrete=self.world.choices is not None,
        )


@eqx.filter_jit
def _begin(
    world: World,
    start: Float[Array, "lots episodes obs"] | None,
    key: PRNGKeyArray,
    shares: tuple[int, int],
    lots: int,
) -> tuple[Any, Float[Array, "lots policies episodes obs"]]:
    def begin(fixed: tuple[World, PRNGKeyArray], start: Array | None) -> tuple[Any, Array]:
        world, key = fixed
        if start is None:
            return world.begin_from_prior(shares, key=lot_key(key))
        observation = jnp.broadcast_to(start, (*shares, start.shape[-1]))
        return world.begin(observation, key=lot_key(key)), observation

    return in_lots(begin, lots)((world, key), start)


@eqx.filter_jit
def _kept(
    fixed: tuple[World, Int[Array, " kept"]], states: tuple[Any, Array], lots: int
) -> tuple[Any, Array]:
    def keep(fixed: tuple[World, Array], lot: tuple[Any, Array]) -> tuple[Any, Array]:
        (world, places), (state, observation) = fixed, lot
        return world.kept(state, places), observation[places]

    return in_lots(keep, lots)(fixed, states)


@eqx.filter_jit
def _compiled_stretch(
    fixed: tuple[World, Crowd, Int[Array, ""], PRNGKeyArray],
    states: tuple[Any, Float[Array, "lots policies episodes obs"]],
    *,
    steps: int,
    actions: Actions,
    lots: int,
) -> tuple[Any, Array, Trace]:
    def stretch(fixed: tuple[World, Crowd, Array, PRNGKeyArray], lot: tuple[Any, Array]):
        world, crowd, begin, key = fixed
        own_key = lot_key(key)

        episodes = lot[1].shape[1]

        def advance(carry: tuple[Any, Array], chance: Chance):
            state, observation = carry
            action = crowd.act(observation, actions=actions, key=chance.action)
            state, outcome = world.step(state, action, luck=chance.world)
            ended = chance.ending < outcome.ending
            return (state, outcome.observation), Trace(action, outcome.observation, outcome.reward, ended)

        # What is random is drawn for all steps before the first: within the loop it would be most of a step.
        chances = jax.vmap(lambda time: _chance(world, episodes, own_key, time))(begin + jnp.arange(steps))
        (state, observation), trace = jax.lax.scan(advance, lot, chances)
        return state, observation, trace

    return in_lots(stretch, lots)(fixed, states)


@eqx.filter_jit
def _compiled_step(world: World, state: Any, action: Array, time: Array, key: PRNGKeyArray):
    chance = _chance(world, action.shape[1], key, time)
    state, outcome = world.step(state, action, luck=chance.world)
    return state, outcome, chance.ending < outcome.ending


def _chance(world: World, episodes: int, key: PRNGKeyArray, time: Array) -> Chance:
    action_key, world_key, ending_key = _keys(key, time)
    return Chance(
        action_key, world.luck(episodes, key=world_key), jax.random.uniform(ending_key, (episodes,))
    )


def _keys(key: PRNGKeyArray, time: Array) -> tuple[PRNGKeyArray, PRNGKeyArray, PRNGKeyArray]:
    action_key, world_key, ending_key = jax.random.split(jax.random.fold_in(key, time), 3)
    return action_key, world_key, ending_key


def _some(policies: Mapping[str, Policy], places: Int[np.ndarray, " some"]) -> Mapping[str, Policy]:
    names = list(policies)
    return {names[place]: policies[names[place]] for place in places}


def _in_lots(start: Float[np.ndarray, "episodes obs"], lots: int) -> Float[Array, "lots episodes obs"]:
    return jnp.asarray(start, jnp.float32).reshape(lots, -1, start.shape[-1])


def _joined(parts: Array, *, axis: int = 1) -> np.ndarray:
    """The lots' episodes side by side again: the leading axis of lots goes into the axis of episodes."""
    whole = np.moveaxis(np.asarray(parts), 0, axis)
    return whole.reshape(*whole.shape[:axis], -1, *whole.shape[axis + 2 :])
