"""Choose settings by held-out logged episodes, never by true returns: a whole grid, or successive halving."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from vlbm.data.episodes import Episodes
from vlbm.data.view import EpisodeView
from vlbm.errors import InputError, TrainingDivergedError
from vlbm.estimators.base import Estimator, flatten_settings
from vlbm.estimators.world_models.validation import held_out_bound
from vlbm.experiments.grids import PAPER_GRID, describe_settings
from vlbm.experiments.held_out_behaviours import leave_one_behaviour_out
from vlbm.progress import Progress, silent
from vlbm.storage import check_identity, write_text

Search = Literal["grid", "halving"]
Score = Literal["open-loop", "elbo", "behaviours"]
KEPT = 3  # one in so many candidates goes on to the next rung of a halving, with so many times the steps
RESULTS = "search.json"


@dataclass(frozen=True)
class Candidate:
    """Settings, and how they did after so many steps."""

    settings: Mapping[str, Any]
    steps: int
    score: float  # lower is better; infinite where training diverged
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """JSON has no infinity."""
        return {**asdict(self), "score": self.score if math.isfinite(self.score) else None}


@dataclass(frozen=True)
class Selection:
    """All that was tried, in order, and what was chosen."""

    score: str
    candidates: tuple[Candidate, ...]

    @property
    def best(self) -> Candidate:
        """The best of those that were trained the longest."""
        longest = max(candidate.steps for candidate in self.candidates)
        return min(
            (candidate for candidate in self.candidates if candidate.steps == longest),
            key=lambda candidate: candidate.score,
        )

    def to_json(self) -> dict[str, Any]:
        rows = [candidate.to_json() for candidate in self.candidates]
        return {"score": self.score, "best": dict(self.best.settings), "candidates": rows}


def select_settings(
    estimator: Estimator,
    episodes: Episodes,
    grid: Sequence[Mapping[str, Any]] = PAPER_GRID,
    *,
    search: Search = "halving",
    score: Score = "open-loop",
    seed: int = 0,
    directory: Path | None = None,
    progress: Progress = silent,
) -> Selection:
    """Fit the estimator with the settings of a grid and score every fit on logged episodes.

    - `grid` trains all of them to the end. `halving` begins with few steps, keeps the best third, trains
      these with three times the steps, and so on: for the paper's 56 candidates the work of ten full fits.
    - `open-loop`: the error of ten-step predictions on held-out episodes, of world models. `elbo`: the
      negative bound on held-out episodes per step, of VLBM and its ablations. `behaviours`: the error on
      behaviours that were left out of the log, of any method.

    With a directory every finished fit is written there, and found again by the next call. Ctrl-C ends the
    search; the fit that it ended is not scored.
    """
    for name, value, known in (("score", score, Score), ("search", search, Search)):
        if value not in get_args(known):
            raise InputError(f"{name} {value}: must be one of {', '.join(get_args(known))}")
    if not grid:
        raise InputError("grid: there is nothing to choose from; give at least one candidate")
    file = None if directory is None else directory / RESULTS
    identity = {
        "settings": flatten_settings(asdict(estimator)),  # type: ignore[call-overload]
        "data": episodes.fingerprint(),
        "score": score,
        "seed": seed,
    }
    tried = [] if file is None else _read_results(file, identity)
    rungs = plan_rungs(len(grid), _count_steps(estimator), search)
    alive: list[Mapping[str, Any]] = list(grid)
    found: list[Candidate] = []
    total = sum(rung.candidates for rung in rungs)
    with (
        progress.shared_display() as display,
        display.task(total=total, title=f"{search} search") as report,
    ):
        for rung in rungs:
            for settings in alive:
                candidate = _find_tried(tried, settings, rung.steps)
                if candidate is None:
                    candidate = _score_candidate(estimator, episodes, settings, rung.steps, score, seed)
                    tried.append(candidate)
                    if file is not None:
                        _write_results(file, identity, tried)
                    display.say(f"{len(found) + 1:>5}/{total}  {describe_candidate(candidate)}")
                found.append(candidate)
                report(len(found), None)
            ranked = sorted(found[-len(alive) :], key=lambda candidate: candidate.score)
            alive = [candidate.settings for candidate in ranked[: rung.keep]]
    return Selection(score, tuple(found))


def describe_candidate(candidate: Candidate) -> str:
    """One line for a candidate that has been scored."""
    settings = describe_settings(candidate.settings)
    score = f"score {candidate.score:.4g}" if math.isfinite(candidate.score) else "diverged"
    return f"{settings}  {candidate.steps:,} steps  {score}  {candidate.seconds:.0f} s"


def _find_tried(tried: Sequence[Candidate], settings: Mapping[str, Any], steps: int) -> Candidate | None:
    """With the settings as they were given: from a file, tuples come back as lists."""
    wanted = flatten_settings(settings), steps
    old = next((old for old in tried if (flatten_settings(old.settings), old.steps) == wanted), None)
    return None if old is None else replace(old, settings=dict(settings))


class Rung(NamedTuple):
    """So many candidates are trained for so many steps, and so many of them go on."""

    candidates: int
    steps: int
    keep: int


def plan_rungs(candidates: int, steps: int, search: Search) -> list[Rung]:
    """One rung of all candidates, or a ladder: every rung a third as many, with three times the steps."""
    counts = [candidates]
    while search == "halving" and counts[-1] > KEPT:
        counts.append(math.ceil(counts[-1] / KEPT))
    lengths = [max(steps // KEPT ** (len(counts) - 1 - place), 1) for place in range(len(counts))]
    return [
        Rung(count, length, keep)
        for count, length, keep in zip(counts, lengths, [*counts[1:], 1], strict=True)
    ]


def _count_steps(estimator: Any) -> int:
    if not hasattr(estimator, "steps"):
        raise InputError(f"{estimator.method} has no setting steps, so there is no training to search over")
    return estimator.steps


def _score_candidate(
    estimator: Any, episodes: Episodes, settings: Mapping[str, Any], steps: int, score: Score, seed: int
) -> Candidate:
    began = time.monotonic()
    candidate = replace(estimator, **{**settings, "steps": steps})
    try:
        value = SCORES[score](candidate, episodes, seed)
    except TrainingDivergedError:
        value = math.inf
    value = value if math.isfinite(value) else math.inf
    return Candidate(dict(settings), steps, value, time.monotonic() - began)


def _score_open_loop(estimator: Any, episodes: Episodes, seed: int) -> float:
    """The error that checkpoints are chosen by, of the models that are kept."""
    scores = [history.best_score for history in _fit_worlds(estimator, episodes, seed).histories]
    return sum(scores) / len(scores)


def _score_elbo(estimator: Any, episodes: Episodes, seed: int) -> float:
    """The negative bound per step of the same held-out episodes, of the models that are kept."""
    fitted = _fit_worlds(estimator, episodes, seed)
    held_out = EpisodeView.of(episodes).split(estimator.held_out, seed=seed)[1]
    plan = estimator.plan(int(held_out.length.max()))
    bounds = [held_out_bound(world, held_out, plan) for world in fitted.worlds]
    return -sum(bounds) / len(bounds)


def _fit_worlds(estimator: Any, episodes: Episodes, seed: int) -> Any:
    fitted = estimator.fit(episodes, seed=seed)
    if not getattr(fitted, "worlds", ()):
        raise InputError(f"{estimator.method}: only world models have this score; use score=behaviours")
    if any(history.interrupted for history in fitted.histories):
        raise KeyboardInterrupt
    return fitted


def _score_behaviours(estimator: Any, episodes: Episodes, seed: int) -> float:
    return leave_one_behaviour_out(estimator, episodes, seed=seed).error


SCORES: dict[str, Callable[[Any, Episodes, int], float]] = {
    "open-loop": _score_open_loop,
    "elbo": _score_elbo,
    "behaviours": _score_behaviours,
}


def _read_results(file: Path, identity: dict[str, Any]) -> list[Candidate]:
    if not file.is_file():
        return []
    saved = json.loads(file.read_text(encoding="utf-8"))
    check_identity(file, saved["identity"], identity)
    return [
        Candidate(**{**row, "score": math.inf if row["score"] is None else row["score"]})
        for row in saved["candidates"]
    ]


def _write_results(file: Path, identity: dict[str, Any], tried: Sequence[Candidate]) -> None:
    saved = {"identity": identity, "candidates": [candidate.to_json() for candidate in tried]}
    write_text(file, json.dumps(saved, indent=2) + "\n")
