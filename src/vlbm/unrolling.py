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

from vlbm.chance import Chance, chance_of, step_keys
from vlbm.devices import brought, in_lots, lot_key, over_devices, parts_for, placed
from vlbm.models.base import World
from vlbm.policies.base import Policy, TracedPolicy
from vlbm.policies.checks import check_actions
from vlbm.policies.crowd import Actions, Crowd
from vlbm.seating import Seating
from vlbm.settling import settled

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

    def among(self, policies: int, episodes: int, seating: Seating) -> Trace:
        """This as part of what all episodes leave behind; zeros stand for the others."""
        whole = [np.zeros((len(part), policies, episodes, *part.shape[3:]), part.dtype) for part in self]
        for part, own in zip(whole, self, strict=True):
            part[:, seating.rows, seating.episode] = own
        return Trace(*whole)


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
        self.policies, self.actions, self.episodes = policies, actions, episodes
        self.seating = Seating.everyone(len(policies), episodes)
        self.seats: Int[Array, "lots policies seats"] | None = None  # numbers of episodes; None for all
        few = len(policies) * episodes <= FEW
        self.chunk = min(LONG_CHUNK if few else CHUNK, -(-horizon // CHUNK) * CHUNK)
        self.lots = self._lots(episodes)
        self.world = brought(world, over_devices(self.lots))
        begin_key, self.key = placed(jax.random.split(key), over_devices(self.lots))
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

    def keep(self, chosen: Seating) -> None:
        """Go on with some of the episodes alone; what they meet stays as it would have been."""
        names = list(self.policies)
        self.policies = {names[place]: self.policies[names[place]] for place in chosen.policy}
        seats = self.seating.episode.shape[1] // self.lots
        self.seating = self.seating.among(chosen)
        self.seats = jnp.asarray(self.seating.in_lots(self.lots, self.episodes // self.lots))
        self._take(jnp.asarray(chosen.policy), jnp.asarray(chosen.in_lots(self.lots, seats)))

    @abstractmethod
    def _take(self, policies: Int[Array, " some"], seats: Int[Array, "lots some seats"]) -> None:
        """Leave what belongs to others behind."""


class TracedRun(Run):
    """Policies written in JAX, inside the compiled loop; every device imagines a lot of their episodes."""

    def _lots(self, episodes: int) -> int:
        return parts_for(episodes, smallest=-(-SMALLEST_LOT // len(self.policies)))

    def _take(self, policies: Int[Array, " some"], seats: Int[Array, "lots some seats"]) -> None:
        fixed = (self.world, placed(policies, over_devices(self.lots)))
        self.state, self.observation = _kept(fixed, (self.state, self.observation, seats), self.lots)
        self.__dict__.pop("_crowd", None)

    @cached_property
    def _crowd(self) -> Crowd:
        traced = [policy for policy in self.policies.values() if isinstance(policy, TracedPolicy)]
        return Crowd.of(traced, over_devices(self.lots))

    def advance(self, begin: int, steps: int) -> Trace:
        # Always a whole chunk, so that there is one program; what is beyond the horizon is cut off.
        time = jnp.asarray(begin)
        fixed = (self.world, self._crowd, time, self.key)
        self.state, self.observation, trace = _compiled_stretch(
            fixed,
            (self.state, self.observation, self.seats),
            episodes=self.episodes // self.lots,
            steps=self.chunk,
            actions=self.actions,
            lots=self.lots,
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
            action_key, _, _ = step_keys(self.key, jnp.asarray(time))
            action = np.stack(
                [
                    self._act(name, policy, part, numbers, action_key)
                    for (name, policy), part, numbers in zip(
                        self.policies.items(), seen, self.seating.episode, strict=True
                    )
                ]
            )
            self.state, outcome, ended = _compiled_step(
                self.world,
                self.state,
                jnp.asarray(action),
                jnp.asarray(time),
                self.key,
                None if self.seats is None else self.seats[0],
                self.episodes,
            )
            self.observation = outcome.observation
            taken.append(
                Trace(action, *(np.asarray(part) for part in (self.observation, outcome.reward, ended)))
            )
        return Trace(*(np.stack(parts) for parts in zip(*taken, strict=True)))

    def _take(self, policies: Int[Array, " some"], seats: Int[Array, "lots some seats"]) -> None:
        self.state = self.world.kept(self.state, policies, seats[0])
        self.observation = self.observation[policies[:, None], seats[0]]

    def _act(
        self, name: str, policy: Policy, seen: np.ndarray, numbers: np.ndarray, key: PRNGKeyArray
    ) -> np.ndarray:
        if self.actions == "mean":
            action = policy.mean(seen)
        elif self.seats is None:
            action = policy.sample(seen, key=key)
        else:
            # What is drawn for an episode depends on its number among all.
            whole = np.zeros((self.episodes, seen.shape[1]), seen.dtype)
            whole[numbers] = seen
            action = np.asarray(policy.sample(whole, key=key))[numbers]
        return check_actions(
            name,
            action,
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
    fixed: tuple[World, Int[Array, " some"]], states: tuple[Any, Array, Array], lots: int
) -> tuple[Any, Array]:
    def keep(fixed: tuple[World, Array], lot: tuple[Any, Array, Array]) -> tuple[Any, Array]:
        (world, policies), (state, observation, seats) = fixed, lot
        return world.kept(state, policies, seats), observation[policies[:, None], seats]

    return in_lots(keep, lots)(fixed, states)


@eqx.filter_jit
def _compiled_stretch(
    fixed: tuple[World, Crowd, Int[Array, ""], PRNGKeyArray],
    states: tuple[Any, Float[Array, "lots policies seats obs"], Int[Array, "lots policies seats"] | None],
    *,
    episodes: int,
    steps: int,
    actions: Actions,
    lots: int,
) -> tuple[Any, Array, Trace]:
    def stretch(fixed: tuple[World, Crowd, Array, PRNGKeyArray], lot: tuple[Any, Array, Array | None]):
        world, crowd, begin, key = fixed
        state, observation, seats = lot
        own_key = lot_key(key)

        def advance(carry: tuple[Any, Array], chance: Chance):
            state, observation = carry
            action = _acted(crowd, observation, seats, episodes, actions, chance.action)
            luck = chance.seated(seats).world
            state, observation, remains = world.advance(state, action, luck=luck)
            return (state, observation), (action, observation, remains)

        # What is random is drawn for all steps before the first: within the loop it would be most of a step.
        times = begin + jnp.arange(steps)
        chances = jax.vmap(lambda time: chance_of(world, episodes, own_key, time))(times)
        (state, observation), (action, seen, remains) = jax.lax.scan(advance, (state, observation), chances)
        reward, ended = settled(world, remains, chances, seats, episodes=observation[..., 0].size)
        return state, observation, Trace(action, seen, reward, ended)

    return in_lots(stretch, lots)(fixed, states)


def _acted(
    crowd: Crowd,
    observation: Float[Array, "policies seats obs"],
    seats: Int[Array, "policies seats"] | None,
    episodes: int,
    actions: Actions,
    key: PRNGKeyArray,
) -> Shaped[Array, "policies seats *act"]:
    if seats is None or actions == "mean":
        return crowd.act(observation, actions=actions, key=key)
    # What is drawn for an episode depends on its number among all.
    places = (jnp.arange(len(seats))[:, None], seats)
    whole = jnp.zeros((len(seats), episodes, observation.shape[-1])).at[places].set(observation)
    return crowd.act(whole, actions=actions, key=key)[places]


@eqx.filter_jit
def _compiled_step(
    world: World,
    state: Any,
    action: Array,
    time: Array,
    key: PRNGKeyArray,
    seats: Int[Array, "policies seats"] | None,
    episodes: int,
):
    chance = chance_of(world, episodes, key, time).seated(seats)
    state, outcome = world.step(state, action, luck=chance.world)
    return state, outcome, chance.ending < outcome.ending


def _in_lots(start: Float[np.ndarray, "episodes obs"], lots: int) -> Float[Array, "lots episodes obs"]:
    return jnp.asarray(start, jnp.float32).reshape(lots, -1, start.shape[-1])


def _joined(parts: Array, *, axis: int = 1) -> np.ndarray:
    """The lots' episodes side by side again: the leading axis of lots goes into the axis of episodes."""
    whole = np.moveaxis(np.asarray(parts), 0, axis)
    return whole.reshape(*whole.shape[:axis], -1, *whole.shape[axis + 2 :])
