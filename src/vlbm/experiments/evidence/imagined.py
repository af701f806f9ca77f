"""Witness: keeps of imagined episodes what a page shows, while they pass by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Int

from vlbm.data.episodes import Episodes, concatenate
from vlbm.experiments.evidence.courses import band, observed_at, still_running
from vlbm.results.diagnostics.support import Support, features

QUERIES = 1500  # steps per policy and world whose distance from the log is measured
SAMPLES = 4  # whole episodes of the first world that are kept for its latent map


@dataclass(frozen=True, eq=False)
class PolicyEvidence:
    """How one policy fared in the imagined worlds."""

    model_values: Float[np.ndarray, " models"]
    ended: float  # share of episodes that the worlds ended
    running: Float[np.ndarray, " times"]
    courses: Float[np.ndarray, "times dims quantiles"]
    outside: (
        Float[np.ndarray, " times"] | None
    )  # share of steps outside the log; NaN where none was asked about
    outside_share: float | None


@dataclass
class _Passed:
    """What was kept of one policy so far, one entry for every world."""

    values: list[float] = field(default_factory=list)
    length: list[np.ndarray] = field(default_factory=list)
    terminated: list[np.ndarray] = field(default_factory=list)
    observed: list[np.ndarray] = field(default_factory=list)
    asked: list[np.ndarray] = field(default_factory=list)  # steps at every time
    outside: list[np.ndarray] = field(default_factory=list)


@dataclass
class Witness:
    """Called with every world's imagined episodes; memory does not grow with their number of steps."""

    times: Int[np.ndarray, " times"]
    dimensions: Int[np.ndarray, " dims"]
    discount: float
    support: Support | None = None
    samples: dict[str, Episodes] = field(default_factory=dict)  # from the first world
    _passed: dict[str, _Passed] = field(default_factory=dict)

    def __call__(self, world: int, imagined: Mapping[str, Episodes]) -> None:
        for name, episodes in imagined.items():
            passed = self._passed.setdefault(name, _Passed())
            passed.values.append(float(episodes.returns(self.discount).mean()))
            passed.length.append(episodes.length)
            passed.terminated.append(episodes.terminated)
            passed.observed.append(observed_at(episodes, self.times, self.dimensions))
            if world == 0:
                self.samples[name] = episodes.select(range(min(SAMPLES, episodes.count)))
            if self.support is not None:
                asked, outside = self._outside(episodes, self.support)
                passed.asked.append(asked)
                passed.outside.append(outside)

    def policies(self) -> dict[str, PolicyEvidence]:
        """What was seen of every policy, all worlds together."""
        return {name: self._summary(passed) for name, passed in self._passed.items()}

    def sampled(self) -> tuple[Episodes, Int[np.ndarray, " episodes"]] | None:
        """Some imagined episodes, and the number of the policy that each is of."""
        if not self.samples:
            return None
        owner = np.repeat(np.arange(len(self.samples)), [part.count for part in self.samples.values()])
        return concatenate(list(self.samples.values())), owner

    def _outside(self, episodes: Episodes, support: Support) -> tuple[np.ndarray, np.ndarray]:
        """How many steps were looked at around each time, and how many of them lie outside."""
        some = episodes.select(range(min(max(QUERIES // len(self.times), 1), episodes.count)))
        at = np.flatnonzero(np.isin(some.time, self.times))
        place = np.searchsorted(self.times, some.time[at])
        outside = support.outside(features(some, at))
        count = len(self.times)
        return np.bincount(place, minlength=count), np.bincount(place[outside], minlength=count)

    def _summary(self, passed: _Passed) -> PolicyEvidence:
        asked, outside = np.sum(passed.asked, axis=0), np.sum(passed.outside, axis=0)
        known = bool(passed.asked)
        return PolicyEvidence(
            model_values=np.array(passed.values),
            ended=float(np.concatenate(passed.terminated).mean()),
            running=still_running(np.concatenate(passed.length), self.times),
            courses=band(np.concatenate(passed.observed)),
            outside=np.where(asked > 0, outside / np.maximum(asked, 1), np.nan) if known else None,
            outside_share=float(outside.sum() / max(asked.sum(), 1)) if known else None,
        )
