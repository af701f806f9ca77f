"""LoggedSummary: statistics of the log for the page."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from vlbm.data.episodes import Episodes
from vlbm.data.inspect import inspect
from vlbm.estimand import Horizon
from vlbm.experiments.evidence.trajectories import observations_at, quantile_band, share_running, time_points
from vlbm.results.diagnostics.probabilities import standard_error
from vlbm.results.diagnostics.support import subsample

DIMENSIONS = 24  # observation dimensions whose trajectories are kept
EPISODES = 500  # sample for the trajectories
RETURNS = 2000


@dataclass(frozen=True, eq=False)
class LoggedSummary:
    """Statistics of the log at the discount and horizon of the estimates."""

    episodes: int
    steps: int
    fingerprint: str
    observation_size: int
    action_size: int
    discrete: bool
    terminated: float  # share of episodes
    truncated: int  # episodes that were truncated before the horizon
    returns: Float[np.ndarray, " kept"]
    mean: float  # of all returns
    standard_error: float
    times: Int[np.ndarray, " times"]
    dimensions: Int[np.ndarray, " dims"]  # of those that vary, the first few
    trajectories: Float[np.ndarray, "times dims quantiles"]
    running: Float[np.ndarray, " times"]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]  # assumptions of the reader, missing fields
    observation_names: tuple[str, ...] = ()  # of every number; empty where they have none
    action_names: tuple[str, ...] = ()

    def name_observation(self, dimension: int) -> str:
        """The column that it came from, or its number."""
        known = dimension < len(self.observation_names)
        return self.observation_names[dimension] if known else f"Observation {dimension}"


def summarise_log(
    logged: Episodes, *, discount: float, horizon: Horizon = None, seed: int = 0
) -> LoggedSummary:
    """Statistics of bounded size, whatever the size of the log."""
    limit = logged.longest if horizon is None else horizon
    steps = logged.longest if limit == math.inf else int(limit)
    inspection = inspect(logged, discount=discount)
    returns = logged.returns(discount, horizon=steps)
    times = time_points(steps)
    changing = np.flatnonzero(np.ptp(logged.observation, axis=0) > 0)
    dimensions = (changing if len(changing) else np.arange(logged.observation_size))[:DIMENSIONS]
    generator = np.random.default_rng(seed)
    some = subsample(np.arange(logged.count), EPISODES, generator)
    kept = subsample(np.arange(logged.count), RETURNS, generator)
    return LoggedSummary(
        episodes=logged.count,
        steps=logged.steps,
        fingerprint=logged.fingerprint(),
        observation_size=logged.observation_size,
        action_size=logged.action_size,
        discrete=logged.discrete,
        terminated=float(logged.terminated.mean()),
        truncated=int((~logged.terminated & (logged.length < limit)).sum()),
        returns=returns[kept],
        mean=float(returns.mean()),
        standard_error=standard_error(returns),
        times=times,
        dimensions=dimensions,
        trajectories=quantile_band(observations_at(logged.select(some), times, dimensions)),
        running=share_running(logged.length, times),
        warnings=inspection.warnings,
        notes=(*inspection.assumptions, *inspection.missing, *inspection.information),
        observation_names=logged.observation_names or (),
        action_names=logged.action_names or (),
    )
