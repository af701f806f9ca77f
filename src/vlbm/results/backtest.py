"""Backtest: the behaviour policy is estimated as any other, and held against logged episodes held out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Float

from vlbm.data.episodes import Episodes
from vlbm.data.view import EpisodeView
from vlbm.estimand import Estimand

if TYPE_CHECKING:
    from vlbm.results.estimate import Estimate

SHARE = 0.1  # of episodes that are held out, where a method does not say
RECORDED = 0.1  # quantile of the lengths of cut-off episodes that the steps compared end at
ENDS = (5, 95)  # percentiles of logged returns between which their spread is measured
SURE = 2.0  # standard errors that an error must exceed to be warned of
LARGE = 0.25  # share of the spread of logged returns that is warned of
SCALE = "the spread of logged returns (5th to 95th percentile)"


@dataclass(frozen=True)
class Backtest:
    """How far off a method was for the behaviour policy, cloned from the log, with sampled actions."""

    episodes: int  # held out; clone and world models never learnt from them
    horizon: int  # steps compared
    estimated: float
    logged: float  # mean return of the episodes held out
    standard_error: float  # of the difference
    error: float  # absolute
    error_share: float  # of `SCALE`

    def __str__(self) -> str:
        return (
            f"off by {self.error_share:.0%} of {SCALE}: {self.estimated:.4g} was estimated for the cloned "
            f"behaviour policy and {self.logged:.4g} logged, over {self.horizon} steps of {self.episodes} "
            f"episodes held out; the standard error of the difference is {self.standard_error:.2g}"
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warns of an error that is large and no accident of few episodes."""
        if self.error_share < LARGE or self.error < SURE * self.standard_error:
            return ()
        return (f"on this very log it was {self}",)


class HeldOut(NamedTuple):
    """Logged returns that an estimate of the behaviour policy is held against."""

    estimand: Estimand
    episodes: int
    logged: float
    standard_error: float
    spread: float  # of all logged returns

    def compare(self, row: Estimate) -> Backtest:
        error = abs(row.value - self.logged)
        assert self.estimand.horizon is not None
        return Backtest(
            episodes=self.episodes,
            horizon=self.estimand.horizon,
            estimated=row.value,
            logged=self.logged,
            standard_error=float(np.hypot(self.standard_error, row.standard_error)),
            error=error,
            error_share=error / self.spread,
        )


def measure_spread(returns: Float[np.ndarray, " episodes"]) -> float:
    """How far logged returns lie apart, but for the few at either end."""
    return float(np.ptp(np.percentile(returns, ENDS)))


def hold_out(log: Episodes, estimand: Estimand, *, share: float, seed: int) -> HeldOut | None:
    """The episodes that `split` holds out, over steps that most cut-off ones have; None if there are none.

    Actions are sampled, for logged ones were. Episodes that were cut off earlier are left out.
    """
    if log.count < 2:
        return None
    cut_off = ~log.terminated
    horizon = log.longest if estimand.horizon is None else min(estimand.horizon, log.longest)
    if cut_off.any():
        horizon = min(horizon, int(np.quantile(log.length[cut_off], RECORDED, method="lower")))
    _, held_out = EpisodeView.of(log).split(share, seed=seed)
    usable = ~cut_off | (log.length >= horizon)
    chosen = held_out.chosen[usable[held_out.chosen]]
    if not len(chosen):
        return None
    returns = log.returns(estimand.discount, horizon=horizon)
    whole = returns[usable]
    spread = measure_spread(whole)
    deviation = float(whole.std(ddof=1)) if len(whole) > 1 else 0.0
    return HeldOut(
        estimand=replace(estimand, horizon=horizon, actions="sample"),
        episodes=len(chosen),
        logged=float(returns[chosen].mean()),
        # The deviation of all, for few are held out.
        standard_error=deviation / float(np.sqrt(len(chosen))),
        # Where all returns are equal, their size is the scale.
        spread=spread or float(np.abs(whole).mean()) or 1.0,
    )
