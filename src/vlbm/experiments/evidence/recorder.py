"""RolloutRecorder: summarises imagined episodes for the page, one world at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Int

from vlbm.data.episodes import Episodes, concatenate
from vlbm.experiments.evidence.trajectories import observations_at, quantile_band, share_running
from vlbm.results.diagnostics.support import Support, features

QUERIES = 1500  # steps per policy and world whose distance from the log is measured
SAMPLES = 4  # episodes of the first world that are kept for the latent map


@dataclass(frozen=True, eq=False)
class PolicyEvidence:
    """Summary of one policy's roll-outs."""

    model_values: Float[np.ndarray, " models"]
    terminated: float  # share of episodes
    running: Float[np.ndarray, " times"]
    trajectories: Float[np.ndarray, "times dims quantiles"]
    # Share of steps outside the support of the log; NaN at times without a query.
    outside: Float[np.ndarray, " times"] | None
    outside_share: float | None


@dataclass
class _Recorded:
    """Records of one policy, one entry for every world."""

    values: list[float] = field(default_factory=list)
    length: list[np.ndarray] = field(default_factory=list)
    terminated: list[np.ndarray] = field(default_factory=list)
    observed: list[np.ndarray] = field(default_factory=list)
    queried: list[np.ndarray] = field(default_factory=list)  # number of queried steps at every time
    outside: list[np.ndarray] = field(default_factory=list)


@dataclass
class RolloutRecorder:
    """Called with every world's imagined episodes; memory does not grow with their number of steps."""

    times: Int[np.ndarray, " times"]
    dimensions: Int[np.ndarray, " dims"]
    discount: float
    support: Support | None = None
    samples: dict[str, Episodes] = field(default_factory=dict)  # from the first world
    _recorded: dict[str, _Recorded] = field(default_factory=dict)

    def __call__(self, world: int, imagined: Mapping[str, Episodes]) -> None:
        for name, episodes in imagined.items():
            recorded = self._recorded.setdefault(name, _Recorded())
            recorded.values.append(float(episodes.returns(self.discount).mean()))
            recorded.length.append(episodes.length)
            recorded.terminated.append(episodes.terminated)
            recorded.observed.append(observations_at(episodes, self.times, self.dimensions))
            if world == 0:
                self.samples[name] = episodes.select(range(min(SAMPLES, episodes.count)))
            if self.support is not None:
                queried, outside = self._outside(episodes, self.support)
                recorded.queried.append(queried)
                recorded.outside.append(outside)

    def summarise_policies(self) -> dict[str, PolicyEvidence]:
        """Summaries over all worlds, by policy."""
        return {name: self._summarise(recorded) for name, recorded in self._recorded.items()}

    def sample_episodes(self) -> tuple[Episodes, Int[np.ndarray, " episodes"]] | None:
        """Some imagined episodes, and the index of the policy of each."""
        if not self.samples:
            return None
        owner = np.repeat(np.arange(len(self.samples)), [part.count for part in self.samples.values()])
        return concatenate(list(self.samples.values())), owner

    def _outside(self, episodes: Episodes, support: Support) -> tuple[np.ndarray, np.ndarray]:
        """The number of queried steps at each time, and how many of them lie outside the support."""
        some = episodes.select(range(min(max(QUERIES // len(self.times), 1), episodes.count)))
        at = np.flatnonzero(np.isin(some.time, self.times))
        place = np.searchsorted(self.times, some.time[at])
        outside = support.outside(features(some, at))
        count = len(self.times)
        return np.bincount(place, minlength=count), np.bincount(place[outside], minlength=count)

    def _summarise(self, recorded: _Recorded) -> PolicyEvidence:
        queried, outside = np.sum(recorded.queried, axis=0), np.sum(recorded.outside, axis=0)
        measured = bool(recorded.queried)
        return PolicyEvidence(
            model_values=np.array(recorded.values),
            terminated=float(np.concatenate(recorded.terminated).mean()),
            running=share_running(np.concatenate(recorded.length), self.times),
            trajectories=quantile_band(np.concatenate(recorded.observed)),
            outside=np.where(queried > 0, outside / np.maximum(queried, 1), np.nan) if measured else None,
            outside_share=float(outside.sum() / max(queried.sum(), 1)) if measured else None,
        )
