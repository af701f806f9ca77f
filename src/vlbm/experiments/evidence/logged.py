"""LoggedSummary: the log as a page shows it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from vlbm.data.episodes import Episodes
from vlbm.data.inspect import inspect
from vlbm.experiments.evidence.courses import band, observed_at, still_running, time_points
from vlbm.results.diagnostics.probabilities import standard_error
from vlbm.results.diagnostics.support import some_of
from vlbm.results.estimand import Horizon

DIMENSIONS = 24  # of observations whose courses are kept
EPISODES = 500  # that courses are taken from
RETURNS = 2000


@dataclass(frozen=True, eq=False)
class LoggedSummary:
    """What was logged, at the discount and horizon of the estimates."""

    episodes: int
    steps: int
    fingerprint: str
    observation_size: int
    action_size: int
    discrete: bool
    ended: float  # share of episodes that the system ended
    cut: int  # episodes that were cut off before the horizon
    returns: Float[np.ndarray, " kept"]
    mean: float  # of all returns
    standard_error: float
    times: Int[np.ndarray, " times"]
    dimensions: Int[np.ndarray, " dims"]  # those that change, as many as are kept
    courses: Float[np.ndarray, "times dims quantiles"]
    running: Float[np.ndarray, " times"]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]  # what a reader had to assume, what is missing


def summarise(logged: Episodes, *, discount: float, horizon: Horizon = None, seed: int = 0) -> LoggedSummary:
    """Everything about the log that a page needs, at a bounded size."""
    limit = logged.longest if horizon is None else horizon
    # Without a limit there is no more to see than what was logged.
    steps = logged.longest if limit == math.inf else int(limit)
    inspection = inspect(logged, discount=discount)
    returns = logged.returns(discount, horizon=steps)
    times = time_points(steps)
    changing = np.flatnonzero(np.ptp(logged.observation, axis=0) > 0)
    dimensions = (changing if len(changing) else np.arange(logged.observation_size))[:DIMENSIONS]
    generator = np.random.default_rng(seed)
    some = some_of(np.arange(logged.count), EPISODES, generator)
    kept = some_of(np.arange(logged.count), RETURNS, generator)
    return LoggedSummary(
        episodes=logged.count,
        steps=logged.steps,
        fingerprint=logged.fingerprint(),
        observation_size=logged.observation_size,
        action_size=logged.action_size,
        discrete=logged.discrete,
        ended=float(logged.terminated.mean()),
        cut=int((~logged.terminated & (logged.length < limit)).sum()),
        returns=returns[kept],
        mean=float(returns.mean()),
        standard_error=standard_error(returns),
        times=times,
        dimensions=dimensions,
        courses=band(observed_at(logged.select(some), times, dimensions)),
        running=still_running(logged.length, times),
        warnings=inspection.warnings,
        notes=(*inspection.assumptions, *inspection.missing, *inspection.information),
    )
