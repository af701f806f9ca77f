"""Episodes: experience, logged or imagined, in one type."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

BLOCK_STEPS = 262_144  # steps per block in the computation of returns


class PaddedEpisodes(NamedTuple):
    """Episodes as a rectangle; `valid` is False on padding, which holds zeros."""

    observation: Float[np.ndarray, "episodes steps+1 obs"]
    action: Shaped[np.ndarray, "episodes steps *act"]
    reward: Float[np.ndarray, "episodes steps"]
    valid: Bool[np.ndarray, "episodes steps"]


@dataclass(frozen=True, eq=False)
class Episodes:
    """Episodes laid end to end: episode i has `length[i]` steps and `length[i] + 1` observations.

    Ragged rather than padded, so that memory depends on the number of steps alone. An episode that is not
    `terminated` was truncated, by a time limit or the end of recording: its last observation is not terminal.

    Attributes:
        observation: All observations, the last one of an episode included.
        action: Vectors, or ids.
        reward: Of every step.
        length: Steps of every episode.
        terminated: Whether the system ended the episode.
        log_prob: Log-probability of every logged action under the policy that took it.
        n_actions: How many discrete actions there are; None when actions are vectors.
        notes: Assumptions made by the reader.
    """

    observation: Float[np.ndarray, "steps+episodes obs"]
    action: Float[np.ndarray, "steps act"] | Int[np.ndarray, " steps"]
    reward: Float[np.ndarray, " steps"]
    length: Int[np.ndarray, " episodes"]
    terminated: Bool[np.ndarray, " episodes"]
    log_prob: Float[np.ndarray, " steps"] | None = None
    n_actions: int | None = None  # how many discrete actions there are; None when actions are vectors
    # False where recording stopped before the last step's outcome was observed: the last observation then
    # repeats the one before it. None: every outcome is known.
    final_observed: Bool[np.ndarray, " episodes"] | None = None
    observation_names: tuple[str, ...] | None = None  # of each number in an observation, if they have any
    action_names: tuple[str, ...] | None = None  # of each number in an action vector
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # of a table, by what they became
    notes: tuple[str, ...] = field(default=())  # assumptions made by the reader

    @classmethod
    def from_arrays(
        cls,
        observations: Any,
        actions: Any,
        rewards: Any,
        terminations: Any,
        truncations: Any = None,
        *,
        next_observations: Any = None,
        log_probs: Any = None,
        propensities: Any = None,
        n_actions: int | None = None,
    ) -> Episodes:
        """Episodes from one row for each logged step, laid end to end and checked as files are.

        `terminations` is True at a step that reached a terminal state, `truncations` where a time limit or
        the end of recording cut the episode off. Actions are vectors, or whole
        numbers for discrete ones, of which there are `n_actions` (by default the largest id plus one).
        `propensities` are the probabilities with which the logged actions were chosen; `log_probs` are their
        logarithms, or those of densities. Without `next_observations` the outcome of an episode's last step
        is unknown unless it terminated, and `notes` list the consequences.

        Args:
            observations: `[steps, obs]`, before each step.
            actions: `[steps, act]`, or ids `[steps]`.
            rewards: `[steps]`.
            terminations: True at a step that reached a terminal state.
            truncations: True where a time limit or the end of recording cut the episode off.
            next_observations: `[steps, obs]`, after each step.
            log_probs: Log-probability (for vectors the log-density) of every logged action.
            propensities: Probability of every logged action, instead of its logarithm.
            n_actions: How many discrete actions there are; by default the largest id plus one.
        """
        from vlbm.data.readers.transitions import assemble

        given = {
            "observations": observations,
            "actions": actions,
            "rewards": rewards,
            "terminals": terminations,
            "timeouts": truncations,
            "next_observations": next_observations,
            "log_probs": log_probs,
            "propensities": propensities,
        }
        fields = {name: np.asarray(values) for name, values in given.items() if values is not None}
        return assemble("arrays", fields, n_actions=n_actions)

    @classmethod
    def from_dataframe(cls, frame: Any, *, n_actions: int | None = None, **columns: Any) -> Episodes:
        """Episodes from a pandas or polars DataFrame (or an Arrow table) with one row for each logged step.

        Columns are found by their usual names (observation, action, reward, episode, step, terminated,
        truncated, log_prob, propensity, next_observation, and the like); others are named:
        `from_dataframe(frame, observation=["age", "pulse"], episode="stay")`.

        Args:
            frame: With one row for each logged step.
            n_actions: How many discrete actions there are.
            columns: Roles and the names of their columns, as `load` takes them.
        """
        from vlbm.data.readers import make_columns
        from vlbm.data.readers.table import load_frame

        return load_frame(frame, make_columns("DataFrame", columns), n_actions=n_actions)

    @classmethod
    def from_minari(cls, dataset: Any, *, n_actions: int | None = None, download: bool = False) -> Episodes:
        """Episodes of a Minari data set: the object itself, its folder, or its id.

        Args:
            dataset: The object, its folder, or its id.
            n_actions: How many discrete actions there are.
            download: Whether a missing data set may be fetched.
        """
        from vlbm.data.readers import minari

        if isinstance(dataset, str | os.PathLike):
            return minari.load(dataset, n_actions=n_actions, download=download)
        return minari.read(getattr(dataset, "id", "Minari data set"), dataset, n_actions)

    def __repr__(self) -> str:
        kind = (
            f"{self.n_actions} discrete actions"
            if self.discrete
            else f"actions of {self.action_size} numbers"
        )
        ended = int(self.terminated.sum())
        return (
            f"Episodes({self.count} episodes, {self.steps:,} steps, observations of {self.observation_size} "
            f"numbers, {kind}, {ended} terminated)"
        )

    @property
    def count(self) -> int:
        return len(self.length)

    @property
    def steps(self) -> int:
        return len(self.reward)

    @property
    def longest(self) -> int:
        """Steps of the longest episode."""
        return int(self.length.max())

    @property
    def observation_size(self) -> int:
        return self.observation.shape[1]

    @property
    def discrete(self) -> bool:
        return self.n_actions is not None

    @property
    def mapped(self) -> bool:
        """Whether the arrays are memory-mapped files."""
        return isinstance(self.observation, np.memmap)

    @property
    def action_size(self) -> int:
        """Numbers in an action vector, or the number of discrete actions."""
        return self.n_actions if self.n_actions is not None else self.action.shape[1]

    @property
    def known_length(self) -> Int[np.ndarray, " episodes"]:
        """Steps of each episode whose outcome was observed, which is all of them or all but the last."""
        return self.length if self.final_observed is None else self.length - ~self.final_observed

    @property
    def outcome_known(self) -> Bool[np.ndarray, " steps"]:
        """Whether it was observed what came of each step."""
        known = np.ones(self.steps, bool)
        if self.final_observed is not None:
            known[np.cumsum(self.length)[~self.final_observed] - 1] = False
        return known

    @property
    def first_step(self) -> Int[np.ndarray, " episodes"]:
        """Row of each episode's first action and reward."""
        return np.cumsum(self.length) - self.length

    @property
    def first_observation(self) -> Int[np.ndarray, " episodes"]:
        """Row of each episode's first observation."""
        return self.first_step + np.arange(self.count)

    @property
    def episode_of_step(self) -> Int[np.ndarray, " steps"]:
        return np.repeat(np.arange(self.count), self.length)

    @property
    def time(self) -> Int[np.ndarray, " steps"]:
        """Step number within the episode, from 0."""
        return np.arange(self.steps) - np.repeat(self.first_step, self.length)

    @property
    def observation_before(self) -> Int[np.ndarray, " steps"]:
        """Row of the observation before each step; the next row is the observation after it."""
        return np.arange(self.steps) + self.episode_of_step

    def initial_observations(self) -> Float[np.ndarray, "episodes obs"]:
        return self.observation[self.first_observation]

    def returns(
        self, discount: float = 1.0, *, gamma: float | None = None, horizon: int | None = None
    ) -> Float[np.ndarray, " episodes"]:
        """Discounted sum of each episode's rewards up to the horizon; `gamma` also names the discount.

        Args:
            discount: Weight of the next step's reward.
            gamma: Another name for the discount.
            horizon: Steps that count; by default all.
        """
        discount = discount if gamma is None else gamma
        returns = np.empty(self.count)
        first_step, end = self.first_step, np.cumsum(self.length)
        begin = 0
        # In blocks: temporaries for all steps would need as much memory as the observations.
        while begin < self.count:
            stop = max(int(np.searchsorted(end, first_step[begin] + BLOCK_STEPS, side="right")), begin + 1)
            length = self.length[begin:stop]
            episode = np.repeat(np.arange(len(length)), length)
            time = np.arange(len(episode)) - (first_step[begin:stop] - first_step[begin])[episode]
            weighted = self.reward[first_step[begin] : end[stop - 1]].astype(np.float64) * discount**time
            if horizon is not None:
                weighted = weighted * (time < horizon)
            returns[begin:stop] = np.bincount(episode, weights=weighted, minlength=len(length))
            begin = stop
        return returns

    def select(self, episodes: Sequence[int] | Int[np.ndarray, " chosen"]) -> Episodes:
        """The chosen episodes, in the order given; a mask chooses where it is True."""
        chosen = np.asarray(episodes)
        chosen = np.flatnonzero(chosen) if chosen.dtype == bool else chosen.astype(np.int64)
        length = self.length[chosen]
        step = _ranges(self.first_step[chosen], length)
        return replace(
            self,
            observation=self.observation[_ranges(self.first_observation[chosen], length + 1)],
            action=self.action[step],
            reward=self.reward[step],
            length=length,
            terminated=self.terminated[chosen],
            log_prob=None if self.log_prob is None else self.log_prob[step],
            final_observed=None if self.final_observed is None else self.final_observed[chosen],
        )

    def split(self, fraction: float, *, seed: int) -> tuple[Episodes, Episodes]:
        """Two disjoint parts by episode; the second has about `fraction` of the episodes, at least one.

        A single episode is in both parts.
        """
        if self.count == 1:
            return self, self
        rest, held_out = split_indices(self.count, fraction, seed=seed)
        return self.select(rest), self.select(held_out)

    def fingerprint(self) -> str:
        """A checksum of the arrays."""
        digest = hashlib.blake2b(digest_size=16)
        for part in (self.observation, self.action, self.reward, self.length, self.terminated):
            digest.update(np.ascontiguousarray(part).data)
        if self.final_observed is not None and not self.final_observed.all():
            digest.update(np.ascontiguousarray(self.final_observed).data)
        return digest.hexdigest()

    def pad(self, steps: int | None = None) -> PaddedEpisodes:
        """A rectangle of `steps` steps (default: the longest episode's)."""
        steps = int(self.length.max()) if steps is None else steps
        valid = np.arange(steps) < self.length[:, None]
        observed = np.arange(steps + 1) < self.length[:, None] + 1

        def fill(flat: np.ndarray, mask: np.ndarray) -> np.ndarray:
            out = np.zeros((*mask.shape, *flat.shape[1:]), flat.dtype)
            out[mask] = flat
            return out

        return PaddedEpisodes(
            observation=fill(self.observation, observed),
            action=fill(self.action, valid),
            reward=fill(self.reward, valid),
            valid=valid,
        )


def from_padded(
    *,
    observation: Float[np.ndarray, "episodes steps+1 obs"],
    action: Shaped[np.ndarray, "episodes steps *act"],
    reward: Float[np.ndarray, "episodes steps"],
    length: Int[np.ndarray, " episodes"],
    terminated: Bool[np.ndarray, " episodes"],
    n_actions: int | None = None,
) -> Episodes:
    """Episodes from padded arrays."""
    steps = np.arange(reward.shape[1]) < length[:, None]
    observed = np.arange(reward.shape[1] + 1) < length[:, None] + 1

    def unpad(values: np.ndarray, mask: np.ndarray) -> np.ndarray:
        # Without padding, a reshape is several times faster than boolean indexing.
        return values.reshape(-1, *values.shape[2:]) if mask.all() else values[mask]

    return Episodes(
        observation=unpad(observation, observed),
        action=unpad(action, steps),
        reward=unpad(reward, steps),
        length=np.asarray(length, np.int64),
        terminated=np.asarray(terminated, bool),
        n_actions=n_actions,
    )


def concatenate(parts: Sequence[Episodes]) -> Episodes:
    """One collection from several; log-probabilities are kept only if every part has them, and so are names
    that all parts share."""
    log_probs = [part.log_prob for part in parts]
    known = [log_prob for log_prob in log_probs if log_prob is not None]
    first = parts[0]
    return Episodes(
        observation=np.concatenate([part.observation for part in parts]),
        action=np.concatenate([part.action for part in parts]),
        reward=np.concatenate([part.reward for part in parts]),
        length=np.concatenate([part.length for part in parts]),
        terminated=np.concatenate([part.terminated for part in parts]),
        log_prob=np.concatenate(known) if len(known) == len(parts) else None,
        n_actions=max((part.n_actions for part in parts if part.n_actions is not None), default=None),
        final_observed=concatenate_final_observed(parts),
        **{
            name: getattr(first, name)
            for name in ("observation_names", "action_names", "columns")
            if all(getattr(part, name) == getattr(first, name) for part in parts)
        },
        notes=tuple(dict.fromkeys(note for part in parts for note in part.notes)),
    )


def concatenate_final_observed(parts: Sequence[Episodes]) -> Bool[np.ndarray, " episodes"] | None:
    """Which episodes of several collections have a final observation; None if all of them do."""
    if all(part.final_observed is None for part in parts):
        return None
    return np.concatenate(
        [np.ones(part.count, bool) if part.final_observed is None else part.final_observed for part in parts]
    )


def split_indices(
    count: int, fraction: float, *, seed: int
) -> tuple[Int[np.ndarray, " rest"], Int[np.ndarray, " part"]]:
    """The indices below `count` in two disjoint random parts; a single index is in both."""
    if count == 1:
        return np.zeros(1, np.int64), np.zeros(1, np.int64)
    order = np.random.default_rng(seed).permutation(count)
    part = min(max(round(fraction * count), 1), count - 1)
    return np.sort(order[part:]), np.sort(order[:part])


def _ranges(start: np.ndarray, length: np.ndarray) -> np.ndarray:
    """start[0], start[0]+1, ..., then start[1], start[1]+1, ..., each for its length."""
    total = int(length.sum())
    offset = np.repeat(start - (np.cumsum(length) - length), length)
    return np.arange(total) + offset
