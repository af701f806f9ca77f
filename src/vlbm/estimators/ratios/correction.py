"""What ratios make policies worth, how sure that is, and what speaks against it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from jaxtyping import Float
from scipy.stats import norm

from vlbm.estimators.intervals import Interval, Quotients, bootstrap
from vlbm.estimators.ratios.balance import Balance
from vlbm.estimators.ratios.descent import LATE, Trained
from vlbm.estimators.ratios.remainder import remainders
from vlbm.results.estimate import Estimate

IntervalKind = Literal["bootstrap", "asymptotic"]
DRIFT = 0.03  # of the value, or of the spread of values: more than this in that part is no convergence
FEW = 0.02  # effective share of the steps that is warned of
SOUND_MEAN = (0.8, 1.25)  # of ratios
REMAINDER = 0.1  # of the value, or of the spread of values: more than this is warned of
UNBALANCED = 0.1  # in deviations of what does not balance
CHUNK = 8192  # steps balanced at once


@dataclass(frozen=True, eq=False)
class Corrected:
    """The ratios of several policies at all logged steps within the horizon."""

    balance: Balance
    trained: Trained

    @property
    def names(self) -> list[str]:
        return list(self.trained.answers.choices.policies)

    @cached_property
    def ratios(self) -> Float[np.ndarray, "policies usable"]:
        return self.trained.ratios(self.balance.problem.usable)

    def estimate(
        self, name: str, *, interval: IntervalKind, resamples: int, confidence: float, seed: int
    ) -> Estimate:
        """The value of a policy: logged rewards, weighted by ratios."""
        ratio = self.ratios[self.names.index(name)]
        terms = self.balance.terms(ratio)
        value, resampled = terms.value, terms.resampled(resamples, seed=seed)
        reach = _interval(terms, interval, resamples, confidence, seed)
        details = self.details(name)
        problem = self.balance.problem
        length = problem.episodes.length
        reach = reach.around(value).reaching(problem.feasible_change(value, details["remainder"]))
        return Estimate(
            policy=name,
            value=value,
            standard_error=reach.standard_error,
            lower=reach.lower,
            upper=reach.upper,
            returns=resampled,
            length=float((length if problem.horizon is None else np.minimum(length, problem.horizon)).mean()),
            warnings=tuple(self._warnings(name, value, details)),
            details=details,
        )

    def details(self, name: str) -> dict[str, float]:
        """How far the ratios are from what sound ones must be, and whether training settled."""
        index = self.names.index(name)
        ratio = self.ratios[index]
        late = self.trained.course[-(int(LATE * len(self.trained.course)) + 1) :, index]
        square = float((ratio**2).sum())
        return {
            "mean_ratio": self.balance.mean_ratio(ratio),
            "largest_ratio": float(ratio.max()),
            "effective_share": float(ratio.sum() ** 2 / (len(ratio) * square)) if square > 0 else 0.0,
            "imbalance": float(self._imbalance[index]),
            "remainder": float(self._remainders[index]),
            "late_change": float(np.ptp(late)),
        }

    def _warnings(self, name: str, value: float, details: dict[str, float]) -> list[str]:
        index, found = self.names.index(name), []
        if index in self.trained.diverged:
            found.append(
                "the ratios diverged: their networks left the numbers after step "
                f"{self.trained.diverged[index]}, and the value is by the last sound ones; lower "
                "learning_rate or clip"
            )
        scale = max(abs(value), float(self.trained.logged.unit))
        if details["late_change"] > DRIFT * scale:
            found.append(
                f"the ratios did not converge: over the last {LATE:.0%} of training the value moved by "
                f"{details['late_change']:.3g}; give them more steps, or do not trust them"
            )
        if details["effective_share"] < FEW:
            found.append(
                f"the ratios are concentrated: they leave {details['effective_share']:.1%} of the logged "
                "steps to carry the value"
            )
        if not SOUND_MEAN[0] <= details["mean_ratio"] <= SOUND_MEAN[1]:
            found.append(
                f"the ratios average {details['mean_ratio']:.2g}, and sound ones average 1: steps like this "
                "policy's are missing, or training has not found them"
            )
        if abs(details["remainder"]) > REMAINDER * scale:
            found.append(
                "the ratios do not balance for values: made up for, the value would move by "
                f"{details['remainder']:.3g}; the interval holds that"
            )
        if details["imbalance"] > UNBALANCED:
            found.append(
                "the ratios do not balance: what flows into the weighted steps differs by "
                f"{details['imbalance']:.2g} deviations from what flows out; the policy may do what the log "
                "does not show"
            )
        return found

    @cached_property
    def _remainders(self) -> Float[np.ndarray, " policies"]:
        return remainders(self.balance, self.trained, self.ratios)

    @cached_property
    def _imbalance(self) -> Float[np.ndarray, " policies"]:
        """How far observations and actions fail to balance, in their deviations; the worst of them.

        What holds for every function of observations and actions was asked for by networks alone; these
        functions were chosen by nobody.
        """
        problem, answers = self.balance.problem, self.trained.answers
        logged, usable = self.trained.logged, problem.usable
        policies = len(self.ratios)
        seen, taken, before = (
            np.asarray(part) for part in (logged.observation, logged.action, logged.before)
        )
        if taken.ndim == 1:
            taken = np.eye(answers.choices.action_size, dtype=np.float32)[taken]
        ended = np.maximum(self.ratios @ self.balance.ending[usable], 1e-12)
        weight = self.ratios * (self.balance.share * len(usable) / ended)[:, None] / len(usable)
        first = problem.episodes.first_observation
        chosen = np.asarray(answers.at(first, draw=0)).reshape(len(first), policies, -1)
        flow_seen = np.tile(self.balance.share * seen[first].mean(axis=0), (policies, 1))
        flow_taken = self.balance.share * chosen.mean(axis=0)
        for begin in range(0, len(usable), CHUNK):
            step, part = usable[begin : begin + CHUNK], weight[:, begin : begin + CHUNK]
            stays = part * (problem.discount * self.balance.goes_on[step])
            chosen = np.asarray(answers.at(before[step] + 1, draw=0)).reshape(len(step), policies, -1)
            flow_seen += stays @ seen[before[step] + 1] - part @ seen[before[step]]
            flow_taken += np.einsum("pb,bpa->pa", stays, chosen) - part @ taken[step]
        return np.abs(np.concatenate([flow_seen, flow_taken], axis=1)).max(axis=1)


def _interval(terms: Quotients, kind: IntervalKind, resamples: int, confidence: float, seed: int) -> Interval:
    if kind == "bootstrap" and len(terms.top) > 1:
        return bootstrap(terms, resamples=resamples, confidence=confidence, seed=seed)
    # The delta method: how far every episode alone moves the quotient.
    value, ended = terms.value, float(terms.bottom.sum())
    moves = (terms.top - value * terms.bottom)[:, 0] / ended if ended > 0 else np.zeros(1)
    error = float(np.sqrt((moves**2).sum())) if len(terms.top) > 1 else 0.0
    half = float(norm.ppf((1 + confidence) / 2)) * error
    return Interval(error, value - half, value + half)
